"""Statistics of paired measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How much faster one system is than another on the same prompts.

    Attributes:
        value: geometric mean of the prompts' ratios.
        low: lower end of its 95% interval; None from a single prompt.
        high: upper end.
    """

    value: float
    low: float | None
    high: float | None


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Ratio:
    """The geometric mean of the ratios with a percentile bootstrap interval over prompts.

    Args:
        numerators: positive, one a prompt.
        denominators: positive, of the same prompts.
        seed: of the resampling, so that a report can be reproduced.
    """
    assert len(numerators) == len(denominators) > 0
    logs = np.log(np.asarray(numerators, dtype=np.float64) / np.asarray(denominators, dtype=np.float64))  # [prompts]
    value = float(np.exp(logs.mean()))
    if len(logs) == 1:
        return Ratio(value=value, low=None, high=None)
    picks = np.random.default_rng(seed).integers(len(logs), size=(_RESAMPLES, len(logs)))
    low, high = np.quantile(np.exp(logs[picks].mean(axis=1)), [0.025, 0.975])
    return Ratio(value=value, low=float(low), high=float(high))
