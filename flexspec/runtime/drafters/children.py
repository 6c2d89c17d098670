"""Children of a draft model's nodes from its logits, as the verifier needs them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from flexspec.errors import UsageError
from flexspec.runtime.candidate_search import Sought, find_best, find_candidates
from flexspec.runtime.candidates import CandidateSource, Int64
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.drafters.distinct import draw_distinct
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import NonFiniteLogitsError, RequestSampler


class Brood(NamedTuple):
    """The children of one node, best or first-drawn first.

    Attributes:
        tokens: their ids.
        estimates: of each, the drafter's own estimate of the chance that it is what follows.
        qs: of each, what it was drawn from; () if they were chosen.
        source: what they were chosen from, and the node's place in it; None if no noise counts, they were drawn, or there are none.
        error: why there are none: a drafted path that the request's rules do not allow or can't do with (the text may never
            go there), or logits that are not finite.
    """

    tokens: Sequence[int] = ()
    estimates: Sequence[float] = ()
    qs: Sequence[Distribution] = ()
    source: tuple[CandidateSource, int] | None = None
    error: NonFiniteLogitsError | UsageError | None = None


@dataclass(kw_only=True, slots=True)
class ChildMaker:
    """How the children at the nodes of one tree are chosen or drawn.

    Attributes:
        sampler: the request's.
        children: what they have to be; whatever is likeliest to be accepted if nothing is sampled.
        draws: the source of draws, for children that are drawn.
        alpha: trust in the request's noise, for children that may be anything.
        is_learning: whether alpha may still change; then it need not be followed to the last token.
    """

    sampler: RequestSampler
    children: Children
    draws: Draws | None
    alpha: float
    is_learning: bool


class Parents(NamedTuple):
    """Nodes of one tree that want children.

    Attributes:
        maker: the tree's.
        position: in the whole text, of the children.
        width: how many at each node; there may be fewer where the vocabulary or a distribution is used up.
        paths: for each node, the drafted tokens between the text and its children; they may be empty if the sampler has no rules.
    """

    maker: ChildMaker
    position: int
    width: int
    paths: Sequence[Sequence[int]]


def make_children(logits: torch.Tensor, parents: Sequence[Parents], token_ids: Int64 | None) -> list[Brood]:
    """The children of nodes of several trees, in the order of the nodes.

    Args:
        logits: [nodes, columns] float32 of the draft model.
        parents: the nodes.
        token_ids: the token of each of the model's logits, ascending; None for 0, 1, 2, …
    """
    if all(some.maker.draws is None for some in parents):
        return _choose(logits.numpy(), parents, token_ids)
    broods: list[Brood] = []
    for some in parents:
        own = logits[len(broods) : len(broods) + len(some.paths)]
        if some.maker.draws is None:
            broods += _choose(own.numpy(), [some], token_ids)
        else:
            broods += [_draw(some, some.maker.draws, row, path, token_ids) for row, path in zip(own, some.paths, strict=True)]
    return broods


def _draw(parents: Parents, draws: Draws, logits: torch.Tensor, path: Sequence[int], token_ids: Int64 | None) -> Brood:
    try:
        q = parents.maker.sampler.distribution(logits, path, token_ids=token_ids)
    except (NonFiniteLogitsError, UsageError) as error:
        return Brood(error=error)
    if parents.maker.children is Children.DISTINCT:
        drawn = draw_distinct(draws, q, parents.width)
    else:
        drawn = [(draws.choice(q), q) for _ in range(parents.width)]
    tokens = [token for token, _ in drawn]
    return Brood(tokens, [q.prob(token) for token in tokens], [left for _, left in drawn])


def _choose(logits: npt.NDArray[np.float32], parents: Sequence[Parents], token_ids: Int64 | None) -> list[Brood]:
    values, errors = _ruled(logits, parents, token_ids)
    sought: list[Sought] = []
    for maker, position, width, paths in parents:
        is_free = maker.children is Children.ANY
        alpha = maker.alpha if is_free else 0.0
        sought.append(maker.sampler.sought(len(paths), position, width, alpha, with_noise=is_free, is_exact=not maker.is_learning))
    if all(one.noise is None for one in sought):
        best, peaks = find_best(values, sought, token_ids)
        broods = [Brood(tokens, shares) for tokens, shares in best]
    else:
        candidates, peaks = find_candidates(values, sought, token_ids)
        best = candidates.best([one.k for one in sought for _ in range(one.nodes)], [one.alpha for one in sought for _ in range(one.nodes)])
        broods = [Brood(tokens, shares, source=(candidates, node)) for node, (tokens, shares) in enumerate(best)]
    if errors or not all(map(math.isfinite, peaks)):
        samplers = [some.maker.sampler for some in parents for _ in some.paths]
        for node, peak in enumerate(peaks):
            if not math.isfinite(peak):
                error = errors.get(node) or samplers[node].no_maximum(logits[node, : values.shape[1]], peak)
                broods[node] = Brood(error=error)
    return broods


def _ruled(
    logits: npt.NDArray[np.float32], parents: Sequence[Parents], token_ids: Int64 | None
) -> tuple[npt.NDArray[np.float32], dict[int, UsageError]]:
    """The logits with the rules of their requests applied, minus infinity where that can't be done, and why it can't."""
    values, errors = logits[:, : parents[0].maker.sampler.columns(token_ids)], {}
    if any(some.maker.sampler.has_rules for some in parents):
        values, node = values.copy(), 0
        for some in parents:
            for path in some.paths:
                try:
                    values[node] = some.maker.sampler.ruled(logits[node], path, token_ids)
                except UsageError as error:
                    errors[node] = error
                    values[node] = -np.inf
                node += 1
    return values, errors
