"""Children of a draft model's nodes from its logits, as the verifier needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flexspec.errors import UsageError
from flexspec.runtime.candidates import Candidates, Int64
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.drafters.distinct import draw_distinct
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import NonFiniteLogitsError, RequestSampler


class Child(NamedTuple):
    """A drafted token.

    Attributes:
        token: its id.
        q: what it was drawn from; None if it was chosen.
        estimate: the drafter's own estimate of the chance that it is what follows.
    """

    token: int
    q: Distribution | None
    estimate: float


class Brood(NamedTuple):
    """The children of one node.

    Attributes:
        children: best or first-drawn first.
        candidates: what they were chosen from; None if they were drawn, or there are none.
        error: why there are none: a drafted path that the request's rules do not allow or can't do with (the text may never
            go there), or logits that are not finite.
    """

    children: list[Child]
    candidates: Candidates | None = None
    error: NonFiniteLogitsError | UsageError | None = None


@dataclass(frozen=True, kw_only=True)
class ChildMaker:
    """Chooses or draws the children at the nodes of one tree.

    Attributes:
        sampler: the request's.
        children: what they have to be; whatever is likeliest to be accepted if nothing is sampled.
        draws: the source of draws, for children that are drawn.
        alpha: trust in the request's noise, for children that may be anything.
        is_learning: whether alpha may still change; then it need not be followed to the last token.
        token_ids: the token of each of the model's logits, ascending; None for 0, 1, 2, …
    """

    sampler: RequestSampler
    children: Children
    draws: Draws | None
    alpha: float
    is_learning: bool
    token_ids: Int64 | None = None

    def make(self, logits: torch.Tensor, *, index: int, width: int, paths: Sequence[list[int]]) -> list[Brood]:
        """The children of nodes of one level, in the order of the nodes.

        Args:
            logits: [nodes, columns] float32 of the draft model.
            index: position in the whole text of the children.
            width: how many at each node; there may be fewer where the vocabulary or a distribution is used up.
            paths: for each node, the drafted tokens between the text and its children.
        """
        if self.draws is not None:
            return [self._draw(self.draws, row, width, path) for row, path in zip(logits, paths, strict=True)]
        is_free = self.children is Children.ANY
        alpha = self.alpha if is_free else 0.0
        broods: list[Brood] = []
        found: list[Candidates] = []
        for row, path in zip(logits, paths, strict=True):
            try:
                found.append(
                    self.sampler.candidates(
                        row, index, width, alpha, path, is_for_noise=is_free, is_exact=not self.is_learning, token_ids=self.token_ids
                    )
                )
                broods.append(Brood([]))
            except (NonFiniteLogitsError, UsageError) as error:
                broods.append(Brood([], error=error))
        chosen = iter(self.sampler.with_noise(found, index) if is_free else found)
        return [brood if brood.error is not None else _best(next(chosen), width, alpha) for brood in broods]

    def _draw(self, draws: Draws, logits: torch.Tensor, width: int, path: list[int]) -> Brood:
        try:
            q = self.sampler.distribution(logits, path, token_ids=self.token_ids)
        except (NonFiniteLogitsError, UsageError) as error:
            return Brood([], error=error)
        if self.children is Children.DISTINCT:
            return Brood([Child(token, left, q.prob(token)) for token, left in draw_distinct(draws, q, width)])
        tokens = [draws.choice(q) for _ in range(width)]
        return Brood([Child(token, q, q.prob(token)) for token in tokens])


def _best(candidates: Candidates, width: int, alpha: float) -> Brood:
    places, _ = candidates.best(width, alpha)
    tokens = candidates.ids[places].tolist()
    return Brood([Child(token, None, share) for token, share in zip(tokens, candidates.shares(places), strict=True)], candidates)
