"""Speculative sampling over children drawn without replacement."""

from flexspec.runtime.drafters.base import Children
from flexspec.runtime.verifiers.mss import MssVerifier


class WithoutReplacementVerifier(MssVerifier):
    """The trials of `MssVerifier` for children that are distinct by construction, which accepts more than drawing with replacement.

    A child's q is what the children drawn before it at its node had left of the drafter's distribution, renormalised, so
    the rule of a trial is unchanged (Chen et al., "Sequoia", 2024).
    """

    name = "without_replacement"
    children = Children.DISTINCT
