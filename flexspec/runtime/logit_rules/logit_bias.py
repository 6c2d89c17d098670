"""A bias for chosen tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from flexspec.config import MAX_BIAS
from flexspec.runtime.logit_rules.base import Float32


class LogitBias:
    """Adds to the logits of some tokens; the lowest bias there is bans its token, however large the logits are.

    Args:
        bias: by token id.
    """

    def __init__(self, bias: Mapping[int, float]) -> None:
        ids = sorted(bias)
        self._ids = np.array(ids, dtype=np.int64)
        self._values = np.array([-np.inf if bias[token] == -MAX_BIAS else bias[token] for token in ids], dtype=np.float32)

    def __str__(self) -> str:
        return f"logit_bias of {len(self._ids)} tokens"

    def extend(self, tokens: Sequence[int]) -> None:
        """As `LogitRule.extend`; the text does not matter."""

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """As `LogitRule.apply`."""
        count = int(np.searchsorted(self._ids, len(logits)))
        logits[self._ids[:count]] += self._values[:count]
