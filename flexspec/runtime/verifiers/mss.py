"""Multi-step speculative sampling."""

from collections.abc import Callable

import numpy as np
import torch

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.walk import WalkVerifier


class MssVerifier:
    """Tries a node's children in drawing order, each against what the rejected ones left of the LLM's distribution.

    The emitted text has exactly the LLM's distribution, averaged over the drafter's draws (SpecInfer, section 4.3). For
    that, q is what a child was really drawn from, a chosen child counts as a point mass, a token drawn twice is tried
    twice, and what a rejection leaves is normalised. At temperature 0 it is the greedy walk.
    """

    needs_draws = True

    def __init__(self) -> None:
        self.name = "mss"
        self._greedy = WalkVerifier("greedy")

    def verify(self, tree: TokenTree, logits: Callable[[int], torch.Tensor], sampler: RequestSampler, index: int) -> Verdict:
        """As `Verifier.verify`; reads the trials in `tree.draws`."""
        if sampler.greedy:
            return self._greedy.verify(tree, logits, sampler, index)
        path = [0]
        while True:
            node = path[-1]
            p = sampler.distribution(logits(node))
            draws = sampler.draws(index + len(path) - 1)
            child, left = _try_children(tree, tree.draws.get(node, []), p, draws)
            if child is None:
                return Verdict(path=path, bonus=draws.choice(left))
            path.append(child)


def _try_children(tree: TokenTree, trials: list[Draw], p: Distribution, draws: Draws) -> tuple[int | None, Distribution]:
    """The first accepted child, if any, and what is left of `p`."""
    for trial in trials:
        token = tree.tokens[trial.node]
        q = 1.0 if trial.q is None else trial.q.prob(token)
        assert q > 0, f"token {token} was drawn from a distribution that does not have it"
        if draws.bernoulli(min(1.0, p.prob(token) / q)):
            return trial.node, p
        p = _residual(p, token, trial.q)
    return None, p


def _residual(p: Distribution, token: int, q: Distribution | None) -> Distribution:
    """norm(max(0, p - q)), q being a point mass on `token` if it is None; `p` where rounding leaves nothing."""
    if q is None:
        left = np.where(p.ids == token, 0.0, p.probs)
    else:
        places = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
        left = np.maximum(p.probs - np.where(q.ids[places] == p.ids, q.probs[places], 0.0), 0.0)
    total = float(left.sum())
    if total <= 0:
        return p
    kept = left > 0
    return Distribution(ids=p.ids[kept], probs=left[kept] / total)
