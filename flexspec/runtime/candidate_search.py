"""Finds the candidates of many nodes at once."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flexspec.runtime.candidates import Candidates, Int64
from flexspec.runtime.distribution import Float64
from flexspec.runtime.noisy_top import noisy_top
from flexspec.runtime.randomness import KeyedNoise
from flexspec.runtime.tempered import LOWEST, tempered, within

Float32 = npt.NDArray[np.float32]

_LOW_ALPHA = 0.6
"""Up to this trust in the noise, tokens far below the likeliest one are not worth their noise when drafting."""
_SPREAD = 5.0
_FEWEST = (16, 32)
_MOST = 64
"""How far below the likeliest token, how many at least, with a low and a high trust, and how many at most get noise when
drafting. With SmolLM2 and its pruned self at temperature 1, the 16 likeliest lose one in 70 of the hits of four children
at alpha 0.5; at alpha 1 the 32 likeliest lose one in 40 and the 64 likeliest one in 120, of one child one in 60 and none."""


class Sought(NamedTuple):
    """What is sought at some nodes of one request, which share a text position.

    Attributes:
        nodes: how many.
        k: the fewest candidates wanted at a node; there may be fewer only if the vocabulary ends, or others are banned.
        temperature: of the request, above 0; 1 if nothing is sampled.
        noise: of the request; None if it does not count.
        position: in the whole text, of the tokens that are drafted.
        alpha: trust in the noise.
        is_exact: whether a high `alpha` also brings the best `k` whatever their q, at five times the cost.
    """

    nodes: int
    k: int
    temperature: float
    noise: KeyedNoise | None
    position: int
    alpha: float
    is_exact: bool = False

    @property
    def is_lifting(self) -> bool:
        """Whether the noise may lift unlikely tokens to the best."""
        return self.noise is not None and self.is_exact and self.alpha > _LOW_ALPHA


def find_candidates(values: Float32, sought: Sequence[Sought], token_ids: Int64 | None = None) -> tuple[Candidates, list[float]]:
    """The likeliest tokens at each node, with the noise of those that are to get some.

    Args:
        values: float32 [nodes, columns] logits; banned tokens have minus infinity.
        sought: what at which nodes, in their order.
        token_ids: [columns or more] ascending, the token of each column; None for 0, 1, 2, …

    Returns:
        The candidates, and the largest logit of each node: where that is not finite, the node's candidates mean nothing.
    """
    peaks = np.maximum.reduce(values, axis=1)
    found_peaks: list[float] = peaks.tolist()
    if not all(map(math.isfinite, found_peaks)):
        values = values.copy()
        values[~np.isfinite(peaks)] = peaks[~np.isfinite(peaks)] = 0.0
    temperatures = [one.temperature for one in sought for _ in range(one.nodes)]
    places = _near(values, peaks, temperatures, sought, token_ids)
    bounds, columns = [0], np.concatenate(places)
    for own in places:
        bounds.append(bounds[-1] + len(own))
    nodes = np.arange(len(places)).repeat([len(own) for own in places])
    scores = tempered(values[nodes, columns], peaks[nodes], np.array(temperatures)[nodes])
    ids = columns if token_ids is None else token_ids[columns]
    return Candidates(ids=ids, scores=scores, noise=_noise(ids, bounds, sought), nodes=nodes, bounds=bounds), found_peaks


def _near(values: Float32, peaks: Float32, temperatures: Sequence[float], sought: Sequence[Sought], token_ids: Int64 | None) -> list[Int64]:
    """Ascending columns of the candidates at each node."""
    count, width = values.shape
    floors = [max(peak - _SPREAD * temperature, LOWEST) for peak, temperature in zip(peaks.tolist(), temperatures, strict=True)]
    near = (values >= np.array(floors, dtype=np.float32)[:, np.newaxis]).ravel().nonzero()[0]
    bounds = near.searchsorted([node * width for node in range(count + 1)]).tolist()
    found: list[Int64] = []
    for one in sought:
        k = min(one.k, width)
        fewest = k if one.noise is None else max(k, _FEWEST[one.alpha > _LOW_ALPHA])
        most = max(k, _MOST)
        for node in range(len(found), len(found) + one.nodes):
            own, row = near[bounds[node] : bounds[node + 1]] - node * width, values[node]
            if len(own) < fewest:
                own = _further(own, row, float(peaks[node]), one.temperature, fewest)
            if len(own) > most:
                likely = row[own]
                likely.sort()
                own = own[row[own] >= likely[-most]]
            if one.noise is not None and one.is_lifting:
                scores = tempered(row, peaks[node], temperatures[node])
                own = np.union1d(own, noisy_top(one.noise, scores, k, one.alpha, one.position, token_ids)[0])
            found.append(own)
    return found


def _further(own: Int64, row: Float32, peak: float, temperature: float, fewest: int) -> Int64:
    """`own` with columns further down at one node, until there are `fewest` or all that are not banned."""
    # Where rules leave next to nothing, looking for more would mean one look at the whole row after the other.
    fewest, spread = min(fewest, int(np.count_nonzero(row > -np.inf))), _SPREAD
    while len(own) < fewest:
        spread *= 2
        own = within(row, peak, spread, temperature)
    return own


def _noise(ids: Int64, bounds: Sequence[int], sought: Sequence[Sought]) -> Float64 | None:
    """[len(ids)] the noise of the candidates; a request's is drawn once for all its nodes."""
    if all(one.noise is None for one in sought):
        return None
    noise, node = np.zeros(len(ids)), 0
    for one in sought:
        own = slice(bounds[node], bounds[node + one.nodes])
        node += one.nodes
        if one.noise is not None:
            order = ids[own].argsort()
            noise[own][order] = one.noise.gumbel(ids[own][order], index=one.position)
    return noise
