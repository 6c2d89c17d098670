"""How sure a draft model is of a token, as a confidence class."""

import math

NUM_GRADES = 12
_EVEN = 4
"""The class that begins at odds of 1."""


def grade(estimate: float) -> int:
    """The class, from 0 to `NUM_GRADES` - 1, of a chance: each begins at 4 times the odds of the one below.

    Most are for the sure ones: how deep a chain holds is decided between 0.9 and 0.999.
    """
    if estimate >= 1.0:
        return NUM_GRADES - 1
    odds = max(estimate, 1e-9) / (1.0 - estimate)
    return min(max(math.floor(math.log2(odds) / 2) + _EVEN, 0), NUM_GRADES - 1)
