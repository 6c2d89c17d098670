"""A probability distribution over part of the vocabulary."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Probabilities of the tokens that have any; every other token has none.

    Attributes:
        ids: [k] int64 token ids, ascending.
        probs: [k] float64, summing to 1.
    """

    ids: npt.NDArray[np.int64]
    probs: Float64

    def prob(self, token: int) -> float:
        """Probability of `token`."""
        index = int(np.searchsorted(self.ids, token))
        return float(self.probs[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def without(self, token: int) -> "Distribution | None":
        """What is left when `token` is taken out, renormalised; None if that is nothing."""
        kept = self.ids != token
        probs = self.probs[kept]
        mass = float(probs.sum())
        return Distribution(ids=self.ids[kept], probs=probs / mass) if mass > 0 else None
