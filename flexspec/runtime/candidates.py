"""What a drafter chooses the children of a node from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexspec.runtime.distribution import Float64

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The likeliest tokens at a node, and the noise that the request shares with its drafters.

    Attributes:
        ids: [n] int64 token ids, ascending.
        scores: [n] float64 tempered log q, up to a constant.
        noise: [n] float64, of the node's text position; None if nothing is sampled, or none is wanted.
    """

    ids: Int64
    scores: Float64
    noise: Float64 | None = None

    def best(self, k: int, alpha: float) -> tuple[Int64, Float64]:
        """The best `k` by log q + alpha * noise, the lowest id first among equals.

        Returns:
            [k'] places in `ids`, best first, and [k'] their scores with the noise.
        """
        perturbed = self.scores if self.noise is None else self.scores + alpha * self.noise
        places: Int64 = (-perturbed).argsort(kind="stable")[:k]
        return places, perturbed[places]

    def shares(self, places: Int64) -> list[float]:
        """Softmax of log q + noise at `places`: how sure it is that the LLM chooses these.

        All of the noise counts, however far it is trusted in choosing: of the measures tried with pruned models that tells
        what is accepted from what is not best, by log loss (softmax of log q + alpha * noise, of log q, gap to the next).
        """
        perturbed = self.scores if self.noise is None else self.scores + self.noise
        weights = np.exp(perturbed - np.maximum.reduce(perturbed))
        result: list[float] = (weights[places] / np.add.reduce(weights)).tolist()
        return result

    def ranks(self, token: int, alphas: Float64) -> Int64 | None:
        """[len(alphas)] the place of `token` in the order by log q + alpha * noise, for each alpha; None if it is not among these."""
        place = int(np.searchsorted(self.ids, token))
        if self.noise is None or place == len(self.ids) or self.ids[place] != token:
            return None
        # No difference is taken: at a tiny temperature all scores but the best are minus infinity, equal to each other.
        perturbed = self.scores + alphas[:, np.newaxis] * self.noise
        own = perturbed[:, place, np.newaxis]
        ranks: Int64 = np.count_nonzero(perturbed > own, axis=1) + np.count_nonzero(perturbed[:, :place] == own, axis=1)
        return ranks
