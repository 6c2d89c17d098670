"""Masks equal brute force: a token is allowed where some text of a finite language goes on with its bytes."""

import builtins
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import flexspec
from flexspec.errors import UsageError
from flexspec.grammar import Grammar, GrammarState, json_schema, regex
from tiny_models import TINY_VOCAB, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SPECIAL = 3
EOS = 1
LIMIT = TINY_VOCAB + 12  # the model has padding that the tokenizer does not know

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 12, "then"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}

LANGUAGES: dict[str, tuple[Grammar, list[str]]] = {
    "regex": (
        regex("(the|hell)(o|re|st){0,2}( and)?"),
        [
            head + "".join(middle) + tail
            for head in ("the", "hell")
            for count in range(3)
            for middle in itertools.product(("o", "re", "st"), repeat=count)
            for tail in ("", " and")
        ],
    ),
    "characters of several bytes": (regex("[日本é]{1,2}🙂?"), [a + b + c for a in "日本é" for b in ["", *"日本é"] for c in ("", "🙂")]),
    "json": (json_schema(SCHEMA), [json.dumps({"a": a, "b": b}, separators=(",", ":")) for a in (1, 12, "then") for b in (True, False)]),
    "json text": (json_schema('{"enum": ["in", "ing"]}'), ['"in"', '"ing"']),
}


def token_bytes() -> list[bytes | None]:
    """What each token stands for; None for special ones and padding."""
    vocab = {index: token for token, index in TOKENIZER.get_vocab().items()}
    back = {char: byte for byte, char in bytes_to_chars().items()}
    return [bytes(back[char] for char in vocab[index]) if SPECIAL <= index < TINY_VOCAB else None for index in range(LIMIT)]


def bytes_to_chars() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)}


def start(grammar: Grammar, tokenizer: Any = TOKENIZER, limit: int = LIMIT, ends: Sequence[int] = (EOS,)) -> GrammarState:
    return grammar.start(tokenizer, vocab_limit=limit, end_token_ids=list(ends))


def walk(state: GrammarState, text: bytes, tokens: list[bytes | None]) -> Iterator[tuple[bytes, GrammarState]]:
    """Every state, once for each text."""
    seen = {text}
    queue = [(text, state)]
    while queue:
        text, state = queue.pop()
        yield text, state
        for token in np.flatnonzero(state.allowed()).tolist():
            if token != EOS and (longer := text + (tokens[token] or b"")) not in seen:
                seen.add(longer)
                after = state.advance(token)
                assert after is not None
                queue.append((longer, after))


@pytest.mark.parametrize("name", LANGUAGES)
def test_masks_equal_brute_force(name: str) -> None:
    grammar, language = LANGUAGES[name]
    tokens, whole = token_bytes(), {text.encode() for text in language}
    begun = {text[:end] for text in whole for end in range(len(text) + 1)}
    states = list(walk(start(grammar), b"", tokens))
    assert {text for text, _ in states} >= whole
    # States share one matcher, so they are asked once more in another order.
    random.Random(0).shuffle(states)
    for text, state in states:
        expected = [token is not None and text + token in begun for token in tokens]
        expected[EOS] = text in whole
        assert state.allowed().tolist() == expected, text


def test_a_state_does_not_move() -> None:
    state = start(regex("(ab|ac)+"))
    first = state.allowed()
    a, b = TOKENIZER.encode("ab")
    after = state.advance(a)
    assert after is not None and after.advance(a) is None and after.advance(TINY_VOCAB + 3) is None and after.advance(LIMIT) is None
    assert after.advance(b) is not None
    assert (state.allowed() == first).all() and state.advance(b) is None and state.advance(EOS) is None


def test_what_ends_the_text_is_the_request_s_choice() -> None:
    letter = TOKENIZER.encode("n")[0]
    state = start(regex("on*"), ends=[letter, 2])
    assert np.flatnonzero(state.allowed()).tolist() == [TOKENIZER.encode("o")[0], TOKENIZER.encode("on")[0]]
    after = state.advance(TOKENIZER.encode("o")[0])
    # The tokenizer's own end ends nothing here, and the letter is no text.
    assert after is not None and np.flatnonzero(after.allowed()).tolist() == [2, letter] and after.advance(letter) is None


def test_a_tokenizer_without_an_end_of_its_own() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    state = start(regex("a?"), tokenizer)
    assert np.flatnonzero(state.allowed()).tolist() == [EOS, TOKENIZER.encode("a")[0]]


def test_a_model_with_fewer_tokens_than_its_tokenizer() -> None:
    assert start(regex(".*"), limit=200).allowed().shape == (200,)


def test_a_dead_end_leaves_other_branches_alone() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "</s>": 2}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    state = start(regex("ac|bb?"), tokenizer, limit=3, ends=[2])
    dead, alive = state.advance(0), state.advance(1)
    assert dead is not None and alive is not None
    for _ in range(2):
        assert not dead.allowed().any()
        assert alive.allowed().tolist() == [False, True, True]
        assert dead.advance(0) is None


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (regex("a("), "unclosed group"),
        (regex("(?=x)a"), "look-around"),
        (json_schema({"type": "blob"}), "Invalid type: blob"),
        (json_schema({"not": {"type": "string"}}), "Unimplemented keys"),
        (json_schema({"type": "string", "minLength": 3, "maxLength": 2}), "Unsatisfiable schema"),
        (regex("a\ud800"), "surrogates"),
    ],
)
def test_invalid_grammars_are_refused_with_the_reason(grammar: Grammar, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        start(grammar)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (json_schema, "{", "is not allowed"),
        (json_schema, "[]", "give a dict, or the text of a JSON object"),
        (json_schema, 3, "give a dict"),
        (json_schema, {"enum": {1, 2}}, "not JSON serializable"),
        pytest.param(json_schema, "[" * 100_000, "is not allowed", id="text too deep"),
        pytest.param(json_schema, "1" * 5000, "is not allowed", id="too many digits"),
        (regex, b"a", "as a string"),
    ],
)
def test_what_is_no_grammar_is_refused_at_once(make: Any, given: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(given)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(UsageError, match=r"json_schema\(dict\) is not allowed"):
        json_schema(schema)


def test_only_fast_tokenizers() -> None:
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(UsageError, match="fast transformers tokenizer, and SlowTokenizer is not one"):
        start(regex("a"), SlowTokenizer())
    with pytest.raises(UsageError, match="this model has none"):
        start(regex("a"), None)
    word_level = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1, "</s>": 2})), eos_token="</s>")
    with pytest.raises(UsageError, match="do not work with the tokenizer"):
        start(regex("a"), word_level, limit=3, ends=[2])


def test_without_llguidance_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "flexspec.grammar.llguidance_matcher":
            raise ModuleNotFoundError("No module named 'llguidance'", name="llguidance")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'flexspec\[grammar\]'"):
        start(regex("a"))


def test_the_front_page_has_them() -> None:
    assert flexspec.regex("a") == regex("a")
    assert flexspec.json_schema({"type": "null"}) == json_schema('{"type": "null"}')
    assert isinstance(regex("a"), Grammar)
