"""What a drafter chooses the children of its nodes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flexspec.runtime.distribution import Float64

Int64 = npt.NDArray[np.int64]


class CandidateSource(Protocol):
    """Candidates of several nodes."""

    def at(self, node: int) -> "Candidates":
        """Those of one node, without noise if the node got none."""
        ...


@dataclass(kw_only=True, slots=True, eq=False)
class Candidates:
    """The likeliest tokens at some nodes, and the noise that the requests share with their drafters.

    Nodes are taken together because a level of a tree is so small that each call of NumPy costs more than what it does.

    Attributes:
        ids: [n] int64 token ids, one node's after the other's, ascending at each.
        scores: [n] float64 tempered log q, less that of each node's likeliest token.
        noise: [n] float64, of the nodes' text positions, zeros at nodes that get none; None if there is none at all.
        nodes: [n] the node of each, from 0.
        bounds: [nodes + 1] where each node's begin; every node has some.
    """

    ids: Int64
    scores: Float64
    noise: Float64 | None
    nodes: Int64
    bounds: Sequence[int]

    def at(self, node: int) -> "Candidates":
        """Those of one node, without noise if the node got none."""
        first, end = self.bounds[node], self.bounds[node + 1]
        noise = None if self.noise is None or not self.noise[first:end].any() else self.noise[first:end]
        nodes = self.nodes[first:end] - node
        return Candidates(ids=self.ids[first:end], scores=self.scores[first:end], noise=noise, nodes=nodes, bounds=(0, end - first))

    def order(self, alphas: Sequence[float]) -> tuple[Int64, Float64]:
        """Sort each node's by log q + alpha * noise, best first, the lowest id first among equals.

        Args:
            alphas: [nodes] trust in the noise.

        Returns:
            [n] places in `ids`, which stay within the node's bounds, and [n] the scores with the noise, not sorted.
        """
        perturbed = self.scores if self.noise is None else self.scores + np.array(alphas)[self.nodes] * self.noise
        return np.lexsort((-perturbed, self.nodes)), perturbed

    def best(self, widths: Sequence[int], alphas: Sequence[float]) -> list[tuple[list[int], list[float]]]:
        """The best tokens at each node, as `order` sorts them, and how sure it is that the LLM chooses these.

        That is the softmax of log q + noise. All of the noise counts, however far it is trusted in choosing: of the measures
        tried with pruned models that tells what is accepted from what is not best, by log loss (softmax of log q + alpha *
        noise, of log q, gap to the next).

        Args:
            widths: [nodes] how many at most.
            alphas: [nodes] trust in the noise.
        """
        order, _ = self.order(alphas)
        # Neither noise nor a likeliest token's score, 0, is large enough for the sum to leave the range of float64.
        weights = np.exp(self.scores if self.noise is None else self.scores + self.noise)
        totals = np.add.reduceat(weights, self.bounds[:-1]).tolist()
        tokens, shares = self.ids[order].tolist(), weights[order].tolist()
        found: list[tuple[list[int], list[float]]] = []
        for start, end, width, total in zip(self.bounds[:-1], self.bounds[1:], widths, totals, strict=True):
            stop = min(start + width, end)
            found.append((tokens[start:stop], [share / total for share in shares[start:stop]]))
        return found

    def ranks(self, token: int, alphas: Float64) -> Int64 | None:
        """[len(alphas)] the place of `token` in the order by log q + alpha * noise, for each alpha, at a single node.

        None if it is not among these, or there is no noise.
        """
        place = int(self.ids.searchsorted(token))
        if self.noise is None or place == len(self.ids) or self.ids[place] != token:
            return None
        # No difference is taken: at a tiny temperature all scores but the best are minus infinity, equal to each other.
        perturbed = self.scores + alphas[:, np.newaxis] * self.noise
        own = perturbed[:, place, np.newaxis]
        is_better = perturbed > own
        is_better[:, :place] |= perturbed[:, :place] == own
        ranks: Int64 = np.add.reduce(is_better, axis=1, dtype=np.int64)
        return ranks
