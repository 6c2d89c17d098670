"""What a strategy holds, and the file that it is saved in."""

import json
from pathlib import Path

import pytest

from flexspec import Strategy, UsageError, load_strategy
from flexspec.parallel import OWN_DEVICE, ParallelPlan
from flexspec.strategy import read_strategy


def test_a_path_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    strategy = Strategy(dtype="float32")
    with pytest.raises(UsageError, match=r"missing/a\.json'.*No such file or directory; give a path"):
        strategy.save(tmp_path / "missing" / "a.json")
    with pytest.raises(UsageError, match="Is a directory"):
        strategy.save(tmp_path)
    with pytest.raises(UsageError, match="null"):
        strategy.save("a\0b")


def test_a_file_nested_too_deeply_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"deep\.json' is not JSON"):
        load_strategy(path)


def test_the_largest_pass() -> None:
    assert Strategy(dtype="float32", buckets=(1, 65536)).buckets == (1, 65536)
    with pytest.raises(UsageError, match=r"buckets=\[1, 65537\] is not allowed: .* at most 65536"):
        Strategy(dtype="float32", buckets=(1, 65537))


PLAN = ParallelPlan(
    dp=2, pp=2, tp=2, micro_batches=3, stage_layers=(3, 1), partition={"block_0": ("rows:3",)}, placement={"m": OWN_DEVICE}, model="a"
)


def test_a_plan_for_several_devices_is_kept_and_a_report_is_no_part_of_the_strategy(tmp_path: Path) -> None:
    strategy = Strategy(dtype="float32", drafters=("m",), tree=(2, 1), parallel=PLAN)
    strategy.save(tmp_path / "plain.json")
    strategy.save(tmp_path / "told.json", report={"seconds": 1})
    assert read_strategy(tmp_path / "plain.json") == (strategy, None)
    assert read_strategy(tmp_path / "told.json") == (strategy, {"seconds": 1})
    assert load_strategy(tmp_path / "told.json").parallel.world_size == 10


def test_a_file_of_version_1_is_for_one_device(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"version": 1, "dtype": "float32", "drafters": ["ngram"], "tree": [2, 1]}))
    assert load_strategy(path) == Strategy(dtype="float32", drafters=("ngram",), tree=(2, 1), parallel=ParallelPlan())
    path.write_text(json.dumps({"version": 3, "dtype": "float32"}))
    with pytest.raises(UsageError, match=r"old\.json' is not a strategy of version 2, or an earlier one"):
        load_strategy(path)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"tp": 0}, "tp=0 is not allowed"),
        ({"sp": 2}, "'sp' is no field of a plan: the fields are dp, pp, tp"),
        ([2], r"parallel=\[2\] is not allowed"),
        ({"pp": 2, "stage_layers": [1]}, r"stage_layers=\[1\] has 1 stages where pp=2"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_file(plan: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"version": 2, "dtype": "float32", "parallel": plan}))
    with pytest.raises(UsageError, match=rf"bad\.json': .*{message}"):
        load_strategy(path)
