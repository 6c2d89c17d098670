"""A node's children from a draft model's logits, as the verifier needs them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from flexspec.runtime.candidates import Candidates
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.drafters.distinct import draw_distinct
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import RequestSampler


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


@dataclass(frozen=True, kw_only=True)
class ChildMaker:
    """Chooses or draws the children at the nodes of one tree.

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

    def make(self, logits: torch.Tensor, *, index: int, width: int, path: list[int]) -> tuple[list[Child], Candidates | None]:
        """The children after `path`, best or first-drawn first, and what they were chosen from.

        Args:
            logits: [vocab] float32 of the draft model.
            index: position in the whole text of the children.
            width: how many; there may be fewer where the vocabulary or a distribution is used up.
            path: the drafted tokens between the text and them.

        Raises:
            NonFiniteLogitsError: if there are NaNs.
        """
        if self.draws is not None:
            q = self.sampler.distribution(logits, path)
            return self._draw(self.draws, q, width), None
        is_free = self.children is Children.ANY
        alpha = self.alpha if is_free else 0.0
        found = self.sampler.candidates(logits, index, width, alpha, path, with_noise=is_free, is_exact=not self.is_learning)
        places, _ = found.best(width, alpha)
        tokens = found.ids[places].tolist()
        return [Child(token, None, share) for token, share in zip(tokens, found.shares(places), strict=True)], found

    def _draw(self, draws: Draws, q: Distribution, width: int) -> list[Child]:
        if self.children is Children.DISTINCT:
            return [Child(token, left, q.prob(token)) for token, left in draw_distinct(draws, q, width)]
        tokens = [draws.choice(q) for _ in range(width)]
        return [Child(token, q, q.prob(token)) for token in tokens]
