"""Multi-step speculative sampling."""

from collections.abc import Callable

import torch

from flexspec.runtime.drafters.base import Children
from flexspec.runtime.randomness import VERIFIER_STREAM
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.trials import acceptance, residual, trials_at


class MssVerifier:
    """Tries a node's children in drawing order, each against what the rejected ones left of the LLM's distribution.

    The emitted text has exactly the LLM's distribution, averaged over the drafter's draws (SpecInfer, section 4.3). For
    that, q is what a child was really drawn from, a chosen child counts as a point mass, a token drawn twice is tried
    twice, and what a rejection leaves is normalised. At temperature 0 it is the greedy walk.
    """

    name = "mss"
    children = Children.DRAWN

    def verify(self, tree: TokenTree, logits: Callable[[int], torch.Tensor], sampler: RequestSampler, index: int) -> Verdict:
        """As `Verifier.verify`; reads the trials in `tree.draws`."""
        children = tree.children()
        path = [0]
        tokens: list[int] = []
        while True:
            node = path[-1]
            p = sampler.distribution(logits(node), tokens)
            draws = sampler.draws(index + len(tokens), VERIFIER_STREAM)
            for trial in trials_at(tree, node, children):
                token = int(tree.tokens[trial.node])
                if draws.bernoulli(acceptance(p, token, trial.q)):
                    path.append(trial.node)
                    tokens.append(token)
                    break
                p, _ = residual(p, token, trial.q)
            else:
                return Verdict(path=path, bonus=draws.choice(p))
