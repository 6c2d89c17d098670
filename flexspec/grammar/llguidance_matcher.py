"""States of a grammar that llguidance matches. A request's states share one matcher, which moves to where it is asked."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import llguidance
import llguidance.hf
import numpy as np
import numpy.typing as npt

from flexspec.errors import UsageError
from flexspec.grammar.base import GrammarState

if TYPE_CHECKING:
    from flexspec.grammar.llguidance_grammar import LlguidanceGrammar


_OPTIONS = '%llguidance {"no_forcing": true}'
"""Where a text can only go on in one way, llguidance would allow no other tokens than those that the tokenizer makes of it."""


def start(grammar: "LlguidanceGrammar", tokenizer: Any, *, vocab_limit: int, end_token_ids: Sequence[int]) -> GrammarState:
    """As `Grammar.start`.

    Raises:
        UsageError: with llguidance's reason.
    """
    if not getattr(tokenizer, "is_fast", False):
        kept = "this model has none" if tokenizer is None else f"{type(tokenizer).__name__} is not one"
        raise UsageError(f"grammar={grammar} needs a fast transformers tokenizer, and {kept}: give compile one, or leave out grammar")
    # Which tokens end a text is decided below; llguidance only has to have one.
    own_end = tokenizer.eos_token_id
    vocabulary = _vocabulary(tokenizer, end_token_ids[0] if own_end is None else own_end)
    cursor = _Cursor(_matcher(grammar, vocabulary), vocab_limit, ends=end_token_ids, own_ends=vocabulary.eos_tokens)
    return cursor.root


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, end_token_id: int) -> llguidance.LLTokenizer:
    """A tokenizer in llguidance's form, which takes a quarter of a second for 49,152 tokens."""
    try:
        return llguidance.hf.from_tokenizer(tokenizer, eos_token=end_token_id)
    except ValueError as error:
        raise UsageError(f"grammars do not work with the tokenizer {type(tokenizer).__name__}: {error}; leave out grammar") from error


@lru_cache(maxsize=64)
def _matcher(grammar: "LlguidanceGrammar", vocabulary: llguidance.LLTokenizer) -> llguidance.LLMatcher:
    """A matcher of the empty text, to be copied and never moved."""
    try:
        body = f"/{llguidance.regex_to_lark(grammar.text, '')}/" if grammar.kind == "regex" else f"%json {grammar.text}"
        matcher = llguidance.LLMatcher(vocabulary, f"{_OPTIONS}\nstart: {body}", log_level=0)
    except ValueError as error:
        raise UsageError(f"grammar={grammar} is not allowed: {error}") from error
    if matcher.is_error():
        raise UsageError(f"grammar={grammar} is not allowed: {_reason(matcher.get_error())}")
    return matcher


def _reason(error: str) -> str:
    """What llguidance says, without the lines that show the place."""
    found = re.search(r"^error: (.+)$", error, re.MULTILINE)
    return found[1] if found else re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", error.splitlines()[0])


class _State:
    """The text of `parent` and one more token."""

    __slots__ = ("_cursor", "depth", "parent", "token")

    def __init__(self, cursor: "_Cursor", parent: "_State | None", token: int) -> None:
        self._cursor = cursor
        self.parent = parent
        self.token = token
        self.depth: int = 0 if parent is None else parent.depth + 1

    def allowed(self) -> npt.NDArray[np.bool_]:
        """As `GrammarState.allowed`."""
        return self._cursor.allowed(self)

    def advance(self, token: int) -> "_State | None":
        """As `GrammarState.advance`."""
        return _State(self._cursor, self, token) if self._cursor.accepts(self, token) else None


class _Cursor:
    """One matcher and the states it came through; to copy it for every state would cost time that grows with the text."""

    def __init__(self, pristine: llguidance.LLMatcher, vocab_limit: int, *, ends: Sequence[int], own_ends: Sequence[int]) -> None:
        self.root = _State(self, None, -1)
        self._pristine = pristine
        self._matcher = pristine.deep_copy()
        self._way = [self.root]
        self._vocab_limit = vocab_limit
        self._ends = sorted(ends)
        self._own_ends = [token for token in own_ends if token < vocab_limit]

    def allowed(self, state: _State) -> npt.NDArray[np.bool_]:
        """[vocab_limit] which tokens may follow `state`; none where llguidance gives up."""
        matcher = self._move_to(state)
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.zeros(self._vocab_limit, dtype=np.bool_)
        if not matcher.is_error():
            known = np.unpackbits(bits, bitorder="little")[: self._vocab_limit]
            allowed[: len(known)] = known
            # llguidance would take a token that ends this text for what it stands for elsewhere, and the other way about.
            allowed[self._own_ends] = False
            allowed[self._ends] = matcher.is_accepting()
        return allowed

    def accepts(self, state: _State, token: int) -> bool:
        """Whether the text goes on with `token`."""
        if not 0 <= token < self._vocab_limit or token in self._ends or token in self._own_ends:
            return False
        return self._move_to(state).validate_tokens([token]) == 1

    def _move_to(self, state: _State) -> llguidance.LLMatcher:
        """The matcher, at `state`: back to where the two texts part, and forward from there."""
        if self._matcher.is_error():
            # It would never leave an error, which may belong to a state that was only drafted.
            self._matcher, self._way = self._pristine.deep_copy(), [self.root]
        missing: list[_State] = []
        while state.depth >= len(self._way) or self._way[state.depth] is not state:
            missing.append(state)
            assert state.parent is not None, "all texts begin with the empty one"
            state = state.parent
        if state.depth + 1 < len(self._way):
            self._matcher.rollback(len(self._way) - state.depth - 1)
            del self._way[state.depth + 1 :]
        for state in reversed(missing):
            self._matcher.consume_token(state.token)
            self._way.append(state)
        return self._matcher
