"""The hook for grammars: an automaton over tokens, of which every node of a token tree has a state of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class GrammarState(Protocol):
    """Where some text, the prompt left out, has led in a grammar. It never changes, so that branches may go on from it."""

    def allowed(self) -> "npt.NDArray[np.bool_]":
        """[vocab_limit] which tokens may come next; those that end the text exactly where it may end."""
        ...

    def advance(self, token: int) -> "GrammarState | None":
        """The state after one more token; None if it breaks the grammar or ends the text."""
        ...


@runtime_checkable
class Grammar(Protocol):
    """What `SamplingParams.grammar` takes."""

    def start(self, tokenizer: Any, *, vocab_limit: int, end_token_ids: Sequence[int]) -> GrammarState:
        """The state of the empty text, for one request of its own.

        Args:
            tokenizer: the transformers tokenizer of the model, or None.
            vocab_limit: token ids from here on are padding.
            end_token_ids: tokens that end the text and are no part of it; at least one, all below `vocab_limit`.

        Raises:
            UsageError: if the grammar is not valid, or does not work with this tokenizer.
        """
        ...
