"""How far a drafter should trust the noise that it shares with the verifier."""

import numpy as np

from flexspec.runtime.candidates import Candidates

ALPHAS = np.linspace(0.0, 1.0, 11)
_START = 0.5
_MEMORY = 1500.0
"""Nodes after which an old one counts for 1/e."""
_PRIOR_HITS = 12.0
"""Hits by which the ends of the scale start behind the middle, so that few nodes do not move the choice far."""
_MARGIN = 1.0
"""Hits by which another alpha must lead before it is chosen."""


class LearnedAlpha:
    """Chooses alpha by the acceptance that each alpha would have given.

    Once a node's token is known, so is its rank under every alpha: all are scored on the same nodes, whichever was used, by
    whether the token would have been the first child and whether it would have been among the children.
    """

    def __init__(self) -> None:
        self._hits = -_PRIOR_HITS * (ALPHAS - _START) ** 2 / (1.0 - _START) ** 2
        self._chosen = int(np.argmax(self._hits))

    @property
    def value(self) -> float:
        """The alpha to use now."""
        return float(ALPHAS[self._chosen])

    def observe(self, candidates: Candidates, token: int, width: int) -> None:
        """At a node with `width` children chosen from `candidates`, `token` is what the LLM chose."""
        self._hits *= 1.0 - 1.0 / _MEMORY
        ranks = candidates.ranks(token, ALPHAS)
        if ranks is None:
            return
        self._hits += 0.5 * (ranks == 0) + 0.5 * (ranks < width)
        best = int(np.argmax(self._hits))
        if self._hits[best] > self._hits[self._chosen] + _MARGIN:
            self._chosen = best
