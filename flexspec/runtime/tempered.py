"""Scores of tokens at a temperature."""

import numpy as np
import numpy.typing as npt

from flexspec.runtime.distribution import Float64

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

LOWEST = float(np.finfo(np.float32).min)
WHOLE_SPREAD = 1e6
"""From this distance on, all that are not banned are within reach."""


def tempered(values: Float32, peaks: Float32 | np.float32, temperatures: Float64 | float) -> Float64:
    """(values - peaks) / temperatures in float64, each of all or of one value; temperatures are above 0."""
    scores: Float64 = np.subtract(values, peaks, dtype=np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the peak to minus infinity, which is right
        scores /= temperatures
    return scores


def within(values: Float32, peak: float, spread: float, temperature: float) -> Int64:
    """Ascending places of the values at most about `spread` (times the temperature) below the peak, never of a banned one."""
    if spread > WHOLE_SPREAD:
        return (values > -np.inf).nonzero()[0]
    floor = max(peak - spread * temperature, LOWEST)
    # Rounding the floor to float32 keeps out no float32 value above it.
    return (values >= np.float32(floor)).nonzero()[0]
