"""No end of text before its time."""

from collections.abc import Collection, Sequence

import numpy as np

from flexspec.runtime.logit_rules.base import Float32


class MinTokens:
    """Bans the tokens that end a text while it has fewer than `count` new tokens.

    Args:
        count: new tokens before the text may end.
        ends: the tokens that end it.
    """

    def __init__(self, count: int, ends: Collection[int]) -> None:
        self._count = count
        self._ends = np.array(sorted(ends), dtype=np.int64)
        self._length: int | None = None

    def __str__(self) -> str:
        return f"min_tokens={self._count}"

    def extend(self, tokens: Sequence[int]) -> None:
        """As `LogitRule.extend`."""
        self._length = 0 if self._length is None else self._length + len(tokens)  # the first tokens are the prompt

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """As `LogitRule.apply`."""
        assert self._length is not None, "a minimum before the prompt"
        if self._length + len(path) < self._count:
            logits[self._ends[self._ends < len(logits)]] = -np.inf
