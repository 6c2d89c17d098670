"""Penalties for tokens that have occurred."""

from collections.abc import Sequence

import numpy as np

from flexspec.runtime.logit_rules.base import Float32
from flexspec.runtime.logit_rules.token_counts import TokenCounts


class RepetitionPenalty:
    """Divides a positive logit, and multiplies a negative one, of every token of the prompt and the new text.

    As Hugging Face does; Keskar et al., "CTRL: a conditional transformer language model", 2019, section 4.1.

    Args:
        penalty: above 1 makes repetition less likely.
    """

    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(penalty)
        self._seen = TokenCounts()

    def __str__(self) -> str:
        return f"repetition_penalty={self._penalty:g}"

    def extend(self, tokens: Sequence[int]) -> None:
        """As `LogitRule.extend`."""
        self._seen.extend(tokens)

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """As `LogitRule.apply`."""
        ids, _ = self._seen.after(path, len(logits))
        values = logits[ids]
        logits[ids] = np.where(values < 0, values * self._penalty, values / self._penalty)


class OccurrencePenalties:
    """Lowers the logits of tokens of the new text, the prompt left out: once, and once more for each time they occur.

    As the OpenAI API defines them.

    Args:
        presence: subtracted if the token occurs.
        frequency: subtracted for each time that it occurs.
    """

    def __init__(self, *, presence: float, frequency: float) -> None:
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._new: TokenCounts | None = None

    def __str__(self) -> str:
        return f"presence_penalty={self._presence:g}, frequency_penalty={self._frequency:g}"

    def extend(self, tokens: Sequence[int]) -> None:
        """As `LogitRule.extend`."""
        if self._new is None:
            self._new = TokenCounts()  # the first tokens are the prompt
        else:
            self._new.extend(tokens)

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """As `LogitRule.apply`."""
        assert self._new is not None, "a penalty before the prompt"
        ids, counts = self._new.after(path, len(logits))
        logits[ids] -= self._frequency * counts.astype(np.float32) + self._presence
