import pytest

from flexspec.calibration.report.statistics import best, rank_correlation, regret, relative_errors

TIMES = {"a": [1.0, 1.1, 0.9, 1.0], "b": [1.2, 1.31, 1.09, 1.21], "c": [1.05, 1.0, 0.99, 1.02]}


def test_the_best_has_the_least_median() -> None:
    assert best(TIMES) == "a"
    assert best({"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 2.0]}) == "a"


def test_the_regret_of_the_best_is_none() -> None:
    assert regret(TIMES, "a").value == 1.0


def test_a_clear_difference_is_a_regret() -> None:
    found = regret(TIMES, "b")
    assert not found.is_tie
    assert found.value == pytest.approx(1.2, rel=0.02)


def test_a_difference_within_the_interval_is_a_tie() -> None:
    found = regret(TIMES, "c")
    assert found.ratio.value > 1
    assert found.is_tie
    assert found.value == 1.0


def test_a_single_round_gives_no_tie() -> None:
    assert regret({"a": [1.0], "b": [1.01]}, "b").value == pytest.approx(1.01)


def test_rank_correlation_looks_at_the_order_alone() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 10, 11, 500]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)


def test_errors_are_relative_to_what_was_measured() -> None:
    assert relative_errors([1.1, 2.0, 1.5], [1.0, 2.0, 3.0]) == pytest.approx((0.1, 0.5))
