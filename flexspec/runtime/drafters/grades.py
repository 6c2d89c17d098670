"""How sure a draft model is of a token, as a confidence class."""

import math

import numpy as np

from flexspec.runtime.candidates import Int64
from flexspec.runtime.distribution import Float64

NUM_GRADES = 8


def grade(estimate: float) -> int:
    """The class, from 0 to `NUM_GRADES` - 1, of a chance: each begins at 4 times the odds of the one below, class 4 at 1.

    So the upper ones tell 0.9 from 0.99, which decides how deep a chain holds.
    """
    if estimate >= 1.0:
        return NUM_GRADES - 1
    odds = max(estimate, 1e-9) / (1.0 - estimate)
    return min(max(math.floor(math.log2(odds) / 2) + NUM_GRADES // 2, 0), NUM_GRADES - 1)


def shares(scores: Float64, places: Int64) -> list[float]:
    """The softmax of `scores` at `places`, the first of which is the largest."""
    weights = np.exp(scores - scores[places[0]])
    result: list[float] = (weights[places] / weights.sum()).tolist()
    return result
