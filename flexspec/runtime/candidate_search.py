"""Finds the candidates of many nodes at once, natively where the native library is loaded."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flexspec.codegen.cpu.native.column_search import RowLimits, column_search
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
    limits = _limits(sought, values.shape[1])
    search = column_search()
    if search is not None and not any(one.is_lifting for one in sought):
        ids, scores, bounds, peaks = search.near(values, limits, spread=_SPREAD, token_ids=token_ids)
    else:
        ids, scores, bounds, peaks = _near(values, limits, sought, token_ids)
    nodes = np.arange(len(peaks)).repeat([end - start for start, end in pairwise(bounds)])
    return Candidates(ids=ids, scores=scores, noise=_noise(ids, bounds, sought), nodes=nodes, bounds=bounds), peaks


def find_best(
    values: Float32, sought: Sequence[Sought], token_ids: Int64 | None = None
) -> tuple[list[tuple[list[int], list[float]]], list[float]]:
    """The `k` best tokens at each node, with what `Candidates.best` gives, where no noise counts.

    Arguments and the largest logits are those of `find_candidates`.
    """
    search = column_search()
    if search is None:
        candidates, peaks = find_candidates(values, sought, token_ids)
        nodes = range(len(peaks))
        return candidates.best([one.k for one in sought for _ in range(one.nodes)], [0.0 for _ in nodes]), peaks
    return search.best(values, _limits(sought, values.shape[1]), spread=_SPREAD, token_ids=token_ids)


def _limits(sought: Sequence[Sought], width: int) -> RowLimits:
    """Those of each node, whose rows have `width` columns."""
    temperatures: list[float] = []
    fewest: list[int] = []
    most: list[int] = []
    for one in sought:
        k = min(one.k, width)
        temperatures += [one.temperature] * one.nodes
        fewest += [k if one.noise is None else max(k, _FEWEST[one.alpha > _LOW_ALPHA])] * one.nodes
        most += [max(k, _MOST)] * one.nodes
    return RowLimits(temperatures, fewest, most)


def _near(
    values: Float32, limits: RowLimits, sought: Sequence[Sought], token_ids: Int64 | None
) -> tuple[Int64, Float64, list[int], list[float]]:
    """As `ColumnSearch.near`, with the tokens that noise lifts to the best of their node."""
    peaks = np.maximum.reduce(values, axis=1)
    found_peaks: list[float] = peaks.tolist()
    if not all(map(math.isfinite, found_peaks)):
        values = values.copy()
        bad = ~np.isfinite(peaks)
        values[bad] = -np.inf
        values[bad, 0] = peaks[bad] = 0.0
    count, width = values.shape
    temperatures = np.array(limits.temperatures)
    floors = np.maximum(peaks - _SPREAD * temperatures, LOWEST).astype(np.float32)
    near = (values >= floors[:, np.newaxis]).ravel().nonzero()[0]
    edges = near.searchsorted([node * width for node in range(count + 1)]).tolist()
    own_sought = [one for one in sought for _ in range(one.nodes)]
    found: list[Int64] = []
    for node, (one, temperature, fewest, most) in enumerate(zip(own_sought, *limits, strict=True)):
        own, row = near[edges[node] : edges[node + 1]] - node * width, values[node]
        if len(own) < fewest:
            own = _further(own, row, float(peaks[node]), temperature, fewest)
        if len(own) > most:
            likely = row[own]
            likely.sort()
            own = own[row[own] >= likely[-most]]
        if one.noise is not None and one.is_lifting:
            scores = tempered(row, peaks[node], temperature)
            own = np.union1d(own, noisy_top(one.noise, scores, min(one.k, width), one.alpha, one.position, token_ids)[0])
        found.append(own)
    bounds, columns = [0, *accumulate(map(len, found))], np.concatenate(found)
    nodes = np.arange(count).repeat([len(own) for own in found])
    scores = tempered(values[nodes, columns], peaks[nodes], temperatures[nodes])
    return columns if token_ids is None else token_ids[columns], scores, bounds, found_peaks


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
