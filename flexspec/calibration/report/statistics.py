"""What predictions are worth: regret, ranks, ties."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.stats import spearmanr

from flexspec.bench.statistics import Ratio, paired_ratio

Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Regret:
    """What a choice costs beside the best one.

    Attributes:
        ratio: its time over the best one's, round by round.
    """

    ratio: Ratio

    @property
    def is_tie(self) -> bool:
        """Whether the difference lies within the interval."""
        return self.ratio.low is not None and self.ratio.low <= 1.0

    @property
    def value(self) -> float:
        """1 for a tie."""
        return 1.0 if self.is_tie else max(self.ratio.value, 1.0)


def best(times: Mapping[Key, Sequence[float]]) -> Key:
    """The key with the least median."""
    return min(times, key=lambda key: float(np.median(times[key])))


def regret(times: Mapping[Key, Sequence[float]], choice: Key) -> Regret:
    """Of a choice, given the times of all by round."""
    fastest = best(times)
    if fastest == choice:
        return Regret(ratio=Ratio(value=1.0, low=1.0, high=1.0))
    return Regret(ratio=paired_ratio(times[choice], times[fastest]))


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's."""
    return float(spearmanr(predicted, measured).statistic)


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Median and largest |predicted / measured - 1|."""
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return float(np.median(errors)), float(errors.max())
