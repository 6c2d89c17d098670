"""Statistics of paired measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """An estimated ratio with its uncertainty.

    Attributes:
        value: the estimate.
        low: lower end of its 95% interval; None from a single prompt.
        high: upper end.
    """

    value: float
    low: float | None
    high: float | None


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Ratio:
    """The geometric mean of the prompts' ratios with a percentile bootstrap interval over prompts.

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
    return _with_interval(value, np.exp(logs[_picks(len(logs), seed)].mean(axis=1)))


def pooled_ratio(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Ratio:
    """The sum of the numerators over that of the denominators with a percentile bootstrap interval over prompts; 0 where that is 0.

    Args:
        numerators: at least 0, one a prompt.
        denominators: at least 0, of the same prompts.
        seed: as for `paired_ratio`.
    """
    assert len(numerators) == len(denominators) > 0
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)  # [prompts]
    value = float(_quotient(above.sum(keepdims=True), below.sum(keepdims=True))[0])
    if len(above) == 1:
        return Ratio(value=value, low=None, high=None)
    picks = _picks(len(above), seed)
    return _with_interval(value, _quotient(above[picks].sum(axis=1), below[picks].sum(axis=1)))


def _picks(prompts: int, seed: int) -> np.ndarray:
    """Indices of the prompts of every resample, [resamples, prompts]."""
    return np.random.default_rng(seed).integers(prompts, size=(_RESAMPLES, prompts))


def _with_interval(value: float, resampled: np.ndarray) -> Ratio:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Ratio(value=value, low=float(low), high=float(high))


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    quotient: np.ndarray = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return quotient
