"""Two benchmarks beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench_results import bench_result
from flexspec.bench.comparison import NamedRun, RunComparison, compare_runs
from flexspec.bench.comparison_table import comparison_table
from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import Measurement
from flexspec.bench.prompt_groups import PromptKey
from flexspec.bench.report import Row
from flexspec.bench.result import BenchResult
from flexspec.errors import UsageError

MACHINE = bench_result().machine


def result(speeds: Mapping[str, Sequence[float]], *, drafters: Sequence[str] = ("ngram",), text: str = "", **settings: Any) -> BenchResult:
    """By system the tokens/s on each prompt; 0 is a text of one token. Other settings than the usual ones are noted."""
    rows = [
        Row(
            system=name,
            drafters=[] if name == "flexspec-plain" else list(drafters),
            tree=[2, 1],
            category="all",
            tokens_per_s=1.0,
            tokens_per_step=1.0,
            prompts=1,
            new_tokens=1,
            prefill_s=0.0,
        )
        for name in speeds
    ]
    samples = [
        Sample(
            prompts=(PromptKey(str(prompt), f"digest {text}{prompt}"),),
            category="qa",
            measurements={name: _measurement(speed[prompt]) for name, speed in speeds.items()},
        )
        for prompt in range(len(speeds["flexspec-plain"]))
    ]
    settings = {"model": "a/b", "dtype": "bfloat16", **settings}
    return bench_result(rows=rows, samples=samples, settings=bench_result().settings | settings, versions={"torch": "1"})


def _measurement(speed: float) -> Measurement:
    if not speed:
        return Measurement(new_tokens=1, decode_tokens=0, steps=1, prefill_s=0.5, decode_s=0.0)
    return Measurement(new_tokens=9, decode_tokens=8, steps=5, prefill_s=0.5, decode_s=8 / speed)


def compared(ours: Sequence[BenchResult], theirs: Sequence[BenchResult]) -> RunComparison:
    return compare_runs(NamedRun(name="new", results=ours), NamedRun(name="old", results=theirs))


def test_speedups_are_compared_and_not_speeds() -> None:
    ours = result({"flexspec": [30.0, 60.0, 0.0, 90.0], "flexspec-plain": [10.0, 20.0, 30.0, 30.0], "hf": [5.0, 10.0, 15.0, 15.0]})
    theirs = result(
        {"flexspec": [200.0, 400.0, 600.0], "flexspec-plain": [100.0, 200.0, 300.0], "@8": [1.0, 1.0, 1.0]}, drafters=["suffix"]
    )
    theirs = replace(theirs, machine={**MACHINE, "cpu": "quicker"}, versions={"torch": "2", "other": "3"})
    comparison = compared([ours], [theirs])
    main, plain = comparison.systems
    assert (main.system, main.batch, main.prompts) == ("flexspec", 1, 3)  # the fourth prompt only ran here
    assert main.speedup == pytest.approx((3.0, 2.0))
    assert main.ratio is not None and (main.ratio.value, main.ratio.low, main.ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert main.tokens_per_s == pytest.approx((40.0, 24 / (8 / 200 + 8 / 400 + 8 / 600)))
    assert main.tokens_per_step == pytest.approx((19 / 11, 27 / 15))
    assert (plain.system, plain.speedup, plain.ratio) == ("flexspec-plain", None, None)
    assert comparison.notes == [
        "cpu: CPU here; quicker there",
        "The machines differ: compare the speed-ups over plain decoding, not tokens/s.",
        "torch: 1 here; 2 there",
        "flexspec: ngram, tree ⟨2,1⟩ here; suffix, tree ⟨2,1⟩ there",
        "only in new: hf",
        "only in old: @8",
    ]
    assert comparison_table(comparison).row_count == 2


def test_batch_sizes_are_kept_apart() -> None:
    speeds = {"flexspec": [30.0], "flexspec-plain": [10.0]}
    comparison = compared([result(speeds), result(speeds, batch=4)], [result(speeds, batch=4)])
    assert [(row.batch, row.system) for row in comparison.systems] == [(4, "flexspec"), (4, "flexspec-plain")]
    assert comparison.notes == ["only in new: batch 1"]
    assert compared([result(speeds)], [result(speeds, dtype="float32")]).notes == ["dtype: bfloat16 here; float32 there"]


def test_benchmarks_that_have_nothing_to_do_with_each_other() -> None:
    speeds = {"flexspec": [30.0], "flexspec-plain": [10.0]}
    assert compared([result(speeds)], [result(speeds, model="/elsewhere/b")]).notes == ["model: a/b here; /elsewhere/b there"]
    with pytest.raises(UsageError, match="'old' measured a/c, not a/b"):
        compared([result(speeds)], [result(speeds, model="a/c")])
    with pytest.raises(UsageError, match="'old' was measured at temperature 1, not 0"):
        compared([result(speeds)], [result(speeds, temperature=1.0)])
    for stranger in (result(speeds, text="another "), result(speeds, batch=4)):
        with pytest.raises(UsageError, match="'new' and 'old' have no prompts in common"):
            compared([result(speeds)], [stranger])
