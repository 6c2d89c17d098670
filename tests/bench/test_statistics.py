"""Paired ratios, by values known in advance."""

import math

import numpy as np
import pytest
from scipy import stats

from flexspec.bench.statistics import paired_ratio, pooled_ratio


def test_value_is_the_geometric_mean_of_the_ratios() -> None:
    ratio = paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert ratio.value == pytest.approx(4.0)
    assert ratio.low == pytest.approx(2.0)  # both picks the first: 1 of 4 resamples
    assert ratio.high == pytest.approx(8.0)


def test_prompts_are_paired() -> None:
    """Speeds that vary wildly from prompt to prompt, always in the same ratio, leave no doubt."""
    slow = [1.0, 50.0, 3.0, 700.0]
    ratio = paired_ratio([1.5 * speed for speed in slow], slow)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_one_prompt_has_no_interval() -> None:
    ratio = paired_ratio([3.0], [2.0])
    assert ratio.value == pytest.approx(1.5)
    assert ratio.low is None and ratio.high is None


def test_interval_agrees_with_scipys_bootstrap() -> None:
    logs = np.random.default_rng(1).normal(0.2, 0.3, size=40)
    ratio = paired_ratio(np.exp(logs).tolist(), [1.0] * 40)
    expected = stats.bootstrap((logs,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(2)).confidence_interval
    assert ratio.low is not None and ratio.high is not None
    assert math.log(ratio.low) == pytest.approx(expected.low, abs=0.01)
    assert math.log(ratio.high) == pytest.approx(expected.high, abs=0.01)


def test_swapping_the_systems_inverts_the_ratio() -> None:
    a, b = [10.0, 20.0, 40.0], [9.0, 25.0, 30.0]
    assert paired_ratio(a, b).value == pytest.approx(1 / paired_ratio(b, a).value)


def test_pooled_ratio_weighs_prompts_by_their_size() -> None:
    ratio = pooled_ratio([2.0, 30.0], [1.0, 10.0])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((32 / 11, 2.0, 3.0))
    single = pooled_ratio([3.0], [2.0])
    assert (single.value, single.low, single.high) == (1.5, None, None)


def test_pooled_ratio_of_nothing_is_0() -> None:
    ratio = pooled_ratio([0.0, 0.0], [0.0, 0.0])
    assert (ratio.value, ratio.low, ratio.high) == (0.0, 0.0, 0.0)
