"""Grammars end to end: the new text matches, and drafting changes none of it."""

import json
import re
from typing import Any

import pytest

import flexspec
from compile_once import compiled, model, prompt, with_eos
from flexspec import LLM, SamplingParams, UsageError
from flexspec.grammar import Grammar
from flexspec.runtime.logit_rules.grammar import GrammarRule
from tiny_models import tiny_tokenizer

EOS = 1
PATTERN = "((the|an|in|on|hello) ){3,8}([a-f]{2,6}, ?){2,4}[0-9]{1,3}(\\.|é|日本)"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["the", "then", "other"]},
        "name": {"type": "string", "minLength": 2, "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": -20, "maximum": 3000}, "minItems": 1, "maxItems": 4},
        "done": {"type": "boolean"},
    },
    "required": ["kind", "name", "sizes", "done"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMARS = {"regex": flexspec.regex(PATTERN), "json_schema": flexspec.json_schema(SCHEMA)}
PROMPTS = [list(prompt(length, seed)) for length, seed in ((5, 1), (17, 2), (40, 3))]


@pytest.fixture(scope="module")
def plain() -> LLM:
    return compiled(with_eos(model(), EOS), tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def speculative() -> LLM:
    return compiled(with_eos(model(), EOS), ["prune:1", "ngram"], tree=[3, 2, 1], tokenizer=tiny_tokenizer())


def matches(name: str, text: str) -> bool:
    if name == "regex":
        return re.fullmatch(PATTERN, text) is not None
    value = json.loads(text)
    return (
        list(value) == list(SCHEMA["properties"])
        and value["kind"] in ("the", "then", "other")
        and 2 <= len(value["name"]) <= 12
        and 1 <= len(value["sizes"]) <= 4
        and all(type(size) is int and -20 <= size <= 3000 for size in value["sizes"])
        and isinstance(value["done"], bool)
    )


def params(name: str, temperature: float, **options: Any) -> SamplingParams:
    return SamplingParams(**({"grammar": GRAMMARS[name], "temperature": temperature, "seed": 11, "max_tokens": 150} | options))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", GRAMMARS)
def test_drafting_changes_nothing_and_the_text_matches(plain: LLM, speculative: LLM, name: str, temperature: float) -> None:
    expected = plain.generate(PROMPTS, params(name, temperature))
    outputs = speculative.generate(PROMPTS, params(name, temperature))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert [output.finish_reason for output in outputs] == ["stop"] * len(PROMPTS)
    assert all(matches(name, output.text) and output.token_ids[-1] == EOS for output in outputs)
    assert all(0 < output.stats.accepted < output.stats.drafted for output in outputs)


def test_a_rule_that_ignores_the_path_is_found(plain: LLM, speculative: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = GrammarRule.apply
    monkeypatch.setattr(GrammarRule, "apply", lambda rule, logits, path: apply(rule, logits, ()))
    assert matches("regex", plain.generate(PROMPTS[0], params("regex", 0.9))[0].text)  # its paths are empty
    # The accepted tokens do not match, and nothing goes on from there.
    with pytest.raises(UsageError, match="no token is left to choose"):
        speculative.generate(PROMPTS[0], params("regex", 0.9))


def test_requests_of_a_batch_have_states_of_their_own(speculative: LLM) -> None:
    each = [params("regex", 0.9), params("json_schema", 0.9), params("regex", 0.9, grammar=None), params("regex", 0.9, seed=3)]
    prompts = [PROMPTS[0]] * 4
    together = speculative.generate(prompts, each)
    alone = [speculative.generate(PROMPTS[0], one)[0] for one in each]
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    assert together[0].text != together[3].text


def test_each_of_several_completions_matches(speculative: LLM) -> None:
    outputs = speculative.generate(PROMPTS[0], params("json_schema", 0.9, n=3))
    assert all(matches("json_schema", output.text) for output in outputs) and len({output.text for output in outputs}) == 3


def test_a_text_that_is_cut_short_can_still_be_finished(plain: LLM, speculative: LLM) -> None:
    short, whole = (plain.generate(PROMPTS[1], params("json_schema", 0.0, max_tokens=count))[0] for count in (7, 150))
    assert short.finish_reason == "length" and whole.text.startswith(short.text)
    assert speculative.generate(PROMPTS[1], params("json_schema", 0.0, max_tokens=7))[0].token_ids == short.token_ids


def test_stop_tokens_end_a_text_where_the_grammar_may(speculative: LLM) -> None:
    stop = 60
    output = speculative.generate(PROMPTS[0], params("regex", 0.0, ignore_eos=True, stop_token_ids=[stop]))[0]
    assert output.token_ids[-1] == stop and output.finish_reason == "stop" and matches("regex", output.text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grammar": flexspec.regex("a(")}, "unclosed group"),
        ({"grammar": flexspec.json_schema({"type": "blob"})}, "Invalid type: blob"),
        ({"grammar": flexspec.regex("[^\\s\\S]")}, "no text of this model's tokens matches it"),
        ({"ignore_eos": True}, "leave out ignore_eos"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(speculative: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        speculative.generate(PROMPTS, [params("regex", 0.0), params("regex", 0.0), params("regex", 0.0, **options)])
    with pytest.raises(UsageError, match=message):
        speculative.engine.add(PROMPTS[0], params("regex", 0.0, **options))
    assert not speculative.engine.has_work


def test_a_minimum_that_the_grammar_does_not_reach_is_a_mistake(speculative: LLM) -> None:
    with pytest.raises(UsageError, match=r"min_tokens=20; grammar=regex\('on'\)"):
        speculative.generate(PROMPTS[0], params("regex", 0.0, grammar=flexspec.regex("on"), min_tokens=20))


def test_without_a_tokenizer_only_a_user_s_own_grammar_works() -> None:
    llm = compiled(with_eos(model(), EOS))
    with pytest.raises(UsageError, match="needs a fast transformers tokenizer, and this model has none"):
        llm.generate(PROMPTS[0], params("regex", 0.0))
    assert isinstance(GRAMMARS["regex"], Grammar)
