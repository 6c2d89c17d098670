"""Ratios read as speed-ups over plain decoding."""

from dataclasses import replace

import pytest

from bench_results import CATEGORIES, PATH, bench_result
from flexspec.bench.speedups import compared, speedups_over_plain
from flexspec.bench.statistics import Ratio


def test_peers_are_turned_round() -> None:
    speedups = speedups_over_plain(bench_result())
    assert list(speedups) == list(CATEGORIES)
    for group in speedups.values():
        assert group == {
            "flexspec": Ratio(value=1.5, low=1.25, high=2.0),
            PATH: Ratio(value=1.25, low=1.2, high=1.3),
            "hf": Ratio(value=0.5, low=0.4, high=0.625),
        }
        assert list(group) == ["flexspec", PATH, "hf"]


def test_of_one_prompt() -> None:
    result = replace(bench_result(), ratios={"flexspec-plain/hf": Ratio(value=4.0, low=None, high=None)}, ratios_by_category={})
    assert speedups_over_plain(result) == {"all": {"hf": Ratio(value=0.25, low=None, high=None)}}


@pytest.mark.parametrize(("ratio", "names"), [("a/b/c", ("a", "b/c")), ("a/b/c/d", ("a/b", "c/d"))])
def test_names_with_slashes(ratio: str, names: tuple[str, str]) -> None:
    assert compared(ratio, [*names, "d"]) == names
