"""Keeps a request's new text to a grammar."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flexspec.errors import UsageError
from flexspec.grammar.base import Grammar, GrammarState
from flexspec.runtime.logit_rules.base import Float32

Answer = TypeVar("Answer")


class GrammarRule:
    """Bans the tokens that the grammar does not allow at a node.

    The prompt is no part of the grammar's text. Behind a drafted token that breaks the grammar, where no walk ever gets, logits
    stay as they are, as they do for a draft model that knows none of the allowed tokens.

    Args:
        grammar: what the new text may be.
        tokenizer: the transformers tokenizer of the model, or None.
        vocab_size: token ids of the LLM, padding left out.
        ends: the tokens that end the text.

    Raises:
        UsageError: if the grammar is not valid, allows no text, or can't be used with this model.
    """

    def __init__(self, grammar: Grammar, tokenizer: Any, *, vocab_size: int, ends: Collection[int]) -> None:
        known_ends = sorted(token for token in ends if token < vocab_size)
        if not known_ends:
            raise UsageError(
                f"grammar={grammar} needs a token that ends the text, and there is none: leave out ignore_eos, or give stop_token_ids"
            )
        self._grammar = grammar
        start = self._checked(self._asked(lambda: grammar.start(tokenizer, vocab_limit=vocab_size, end_token_ids=known_ends)))
        if start is None:
            raise UsageError(f"grammar={grammar} must give a state to start from, and gave None")
        self._vocab_size = vocab_size
        self._has_prompt = False
        self._text: GrammarState | None = start
        self._walked: list[int] = []
        # By the drafted tokens since the text: drafters and the verifier ask about the same nodes.
        self._states: dict[tuple[int, ...], GrammarState | None] = {(): start}
        self._banned: dict[tuple[int, ...], npt.NDArray[np.bool_]] = {(): self._banned_at(start)}
        if self._banned[()].all():
            raise UsageError(f"grammar={grammar} is not allowed: no text of this model's tokens matches it")

    def __str__(self) -> str:
        return f"grammar={self._grammar}"

    def extend(self, tokens: Sequence[int]) -> None:
        """As `LogitRule.extend`."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        # Walked when it is next asked about, so that a grammar at fault fails there, where its request alone ends.
        self._walked += tokens
        self._states.clear()
        self._banned.clear()

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """As `LogitRule.apply`.

        Raises:
            UsageError: if the grammar raises, or does not give a mask.
        """
        banned = self._mask(tuple(path))
        if banned is None:
            return
        known = banned[: len(logits)]
        if len(known) < len(banned) and known.all():
            return
        logits[len(known) :] = -np.inf
        np.copyto(logits[: len(known)], -np.inf, where=known)

    def _mask(self, path: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """[vocab] which tokens are banned after `path`; None if the path breaks the grammar."""
        if path not in self._banned:
            state = self._state(path)
            if state is None and path:
                return None
            # A grammar that does not go on with what it allowed has come to a dead end.
            self._banned[path] = np.ones(self._vocab_size, dtype=np.bool_) if state is None else self._banned_at(state)
        return self._banned[path]

    def _banned_at(self, state: GrammarState) -> npt.NDArray[np.bool_]:
        allowed = self._asked(state.allowed)
        if not isinstance(allowed, np.ndarray) or allowed.dtype != np.bool_ or allowed.shape != (self._vocab_size,):
            raise UsageError(f"grammar={self._grammar} must give masks of shape [{self._vocab_size}], NumPy arrays of bool")
        return ~allowed

    def _state(self, path: tuple[int, ...]) -> GrammarState | None:
        if path not in self._states:
            if path:
                self._states[path] = self._advance(self._state(path[:-1]), path[-1])
            else:
                while self._walked:
                    self._text = self._advance(self._text, self._walked[0])
                    del self._walked[0]
                self._states[()] = self._text
        return self._states[path]

    def _advance(self, state: GrammarState | None, token: int) -> GrammarState | None:
        return None if state is None else self._checked(self._asked(lambda: state.advance(token)))

    def _checked(self, state: GrammarState | None) -> GrammarState | None:
        if state is not None and not (hasattr(state, "allowed") and hasattr(state, "advance")):
            raise UsageError(f"grammar={self._grammar} must give states with allowed() and advance(), or None, and gave {state!r}")
        return state

    def _asked(self, call: Callable[[], Answer]) -> Answer:
        """What a grammar answers, which may be the user's own and must not take other requests along."""
        try:
            return call()
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"grammar={self._grammar} raised {type(error).__name__}: {error}") from error
