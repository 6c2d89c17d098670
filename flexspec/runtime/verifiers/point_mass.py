"""Speculative sampling over children that were chosen and not drawn."""

from flexspec.runtime.drafters.base import Children
from flexspec.runtime.verifiers.mss import MssVerifier


class PointMassVerifier(MssVerifier):
    """The trials of `MssVerifier` for the drafter's likeliest children: x is accepted with p(x), else p(x) is set to 0.

    A chosen child has the distribution of a point mass on its token: the drafter's probability of it plays no part.
    """

    name = "point_mass"
    children = Children.CHOSEN
