"""How sure a draft model is of a token, as a confidence class."""

from bisect import bisect_right

NUM_GRADES = 12
_EVEN = 4
"""The class that begins at odds of 1."""
_BEGINS = [4.0**power / (1 + 4.0**power) for power in range(1 - _EVEN, NUM_GRADES - _EVEN)]
"""The least chance of each class but the lowest."""


def grade(estimate: float) -> int:
    """The class, from 0 to `NUM_GRADES` - 1, of a chance: each begins at 4 times the odds of the one below.

    Most are for the sure ones: how deep a chain holds is decided between 0.9 and 0.999.
    """
    return bisect_right(_BEGINS, estimate)
