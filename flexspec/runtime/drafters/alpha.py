"""How far a drafter should trust the noise that it shares with the verifier."""

import numpy as np

from flexspec.runtime.candidates import Candidates

ALPHAS = np.array([*np.linspace(0.0, 1.0, 11), 1.25, 1.5, 2.0])
"""Above 1 it makes up for a model that is surer than it should be: SmolLM2 without its last 4 or 8 layers had 4% and 10% more
hits at temperature 1 with the best of these than with 1."""
_START = 0.5
_MEMORY = 1500.0
"""Nodes after which an old one counts for 1/e."""
_PRIOR_HITS = 3.0
"""Hits by which 0, and 1 and more, start behind the middle, so that few nodes do not move the choice far."""
_MARGIN = 1.0
"""Hits by which another alpha must lead before it is chosen."""


class LearnedAlpha:
    """Chooses alpha by the acceptance that each alpha would have given.

    Once a node's token is known, so is its rank under every alpha: all are scored on the same nodes, whichever was used, by
    whether the token would have been the first child and whether it would have been among the children.
    """

    def __init__(self) -> None:
        self._hits = -_PRIOR_HITS * np.minimum(np.abs(ALPHAS - _START) / _START, 1.0) ** 2
        self._chosen = int(np.argmax(self._hits))

    @property
    def value(self) -> float:
        """The alpha to use now."""
        return float(ALPHAS[self._chosen])

    def observe(self, candidates: Candidates, token: int, width: int) -> None:
        """At a node with `width` children chosen from `candidates`, `token` is what the LLM chose."""
        if candidates.noise is None:
            return  # greedy: nothing to learn, nothing to forget
        self._hits *= 1.0 - 1.0 / _MEMORY
        ranks = candidates.ranks(token, ALPHAS)
        if ranks is None:
            return
        self._hits += 0.5 * (ranks == 0) + 0.5 * (ranks < width)
        best = int(np.argmax(self._hits))
        if self._hits[best] > self._hits[self._chosen] + _MARGIN:
            self._chosen = best
