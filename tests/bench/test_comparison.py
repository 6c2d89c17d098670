"""Two benchmarks beside each other: those just measured, saved ones, and files that are neither."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flexspec.bench.comparison import RunComparison, compare_runs
from flexspec.bench.comparison_table import comparison_table
from flexspec.bench.saved import load_run, read_run
from flexspec.cli.bench import bench
from flexspec.errors import UsageError

app = typer.Typer()
app.command()(bench)

MACHINE = {"cpu": "quick", "cores": 2, "threads": 2, "target": "cpu-native"}


def part(speeds: Mapping[str, Sequence[float]], *, batch: int = 1, drafters: Sequence[str] = ("ngram",), **settings: Any) -> dict[str, Any]:
    """A saved result: by system the tokens/s on each prompt; 0 is a text of one token."""
    systems = [
        {"system": name, "category": "all", "drafters": [] if name == "flexspec-plain" else list(drafters), "tree": [2, 1]}
        for name in speeds
    ]
    count = len(next(iter(speeds.values())))
    samples = [
        {
            "prompts": [{"id": str(prompt), "digest": f"d{prompt}"}],
            "measurements": {
                name: {
                    "new_tokens": 9 if speed[prompt] else 1,
                    "decode_tokens": 8 if speed[prompt] else 0,
                    "steps": 5,
                    "prefill_s": 0.5,
                    "decode_s": 8 / speed[prompt] if speed[prompt] else 0.0,
                }
                for name, speed in speeds.items()
            },
        }
        for prompt in range(count)
    ]
    asked = {"model": "a/b", "dtype": "bfloat16", "temperature": 0.0, "top_p": 1.0, "max_tokens": 9, "verifier": "auto"}
    asked |= {"repeat": 1, "synthetic_acceptance": None, "batch": batch}
    return {"machine": MACHINE, "versions": {"torch": "1"}, "settings": asked | settings, "rows": systems, "samples": samples}


def saved(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"format": "flexspec-bench", "version": 1, "results": list(parts)}


def compared(one: dict[str, Any], other: dict[str, Any]) -> RunComparison:
    return compare_runs(read_run(one, "new", "--load"), read_run(other, "old", "--compare"))


def test_speedups_are_compared_and_not_speeds() -> None:
    ours = part({"flexspec": [30.0, 60.0, 0.0, 90.0], "flexspec-plain": [10.0, 20.0, 30.0, 30.0], "hf": [5.0, 10.0, 15.0, 15.0]})
    theirs = part({"flexspec": [200.0, 400.0, 600.0], "flexspec-plain": [100.0, 200.0, 300.0], "@8": [1.0, 1.0, 1.0]}, drafters=["suffix"])
    theirs["machine"] = MACHINE | {"cpu": "quicker"}
    theirs["versions"] = {"torch": "2", "other": "3"}
    comparison = compared(saved(ours), saved(theirs))
    main, plain = comparison.systems
    assert (main.system, main.batch, main.prompts) == ("flexspec", 1, 3)  # the fourth prompt only ran here
    assert main.speedup == pytest.approx((3.0, 2.0))
    assert main.ratio is not None and (main.ratio.value, main.ratio.low, main.ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert main.tokens_per_s == pytest.approx((40.0, 24 / (8 / 200 + 8 / 400 + 8 / 600)))
    assert main.tokens_per_step == pytest.approx((19 / 15, 27 / 15))
    assert (plain.system, plain.speedup, plain.ratio) == ("flexspec-plain", None, None)
    assert comparison.notes == [
        "cpu: quick here; quicker there",
        "The machines differ: compare the speed-ups over plain decoding, not tokens/s.",
        "torch: 1 here; 2 there",
        "flexspec: ngram, tree ⟨2,1⟩ here; suffix, tree ⟨2,1⟩ there",
        "only in new: hf",
        "only in old: @8",
    ]
    assert comparison_table(comparison).row_count == 2


def test_batch_sizes_are_kept_apart() -> None:
    speeds = {"flexspec": [30.0], "flexspec-plain": [10.0]}
    comparison = compared(saved(part(speeds), part(speeds, batch=4)), saved(part(speeds, batch=4)))
    assert [(row.batch, row.system) for row in comparison.systems] == [(4, "flexspec"), (4, "flexspec-plain")]
    assert comparison.notes == ["only in new: batch 1"]
    assert compared(saved(part(speeds)), saved(part(speeds, dtype="float32"))).notes == ["dtype: bfloat16 here; float32 there"]


def test_benchmarks_that_have_nothing_to_do_with_each_other() -> None:
    speeds = {"flexspec": [30.0], "flexspec-plain": [10.0]}
    assert compared(saved(part(speeds)), saved(part(speeds, model="/elsewhere/b"))).notes == ["model: a/b here; /elsewhere/b there"]
    with pytest.raises(UsageError, match="'old' measured a/c, not a/b"):
        compared(saved(part(speeds)), saved(part(speeds, model="a/c")))
    with pytest.raises(UsageError, match="'old' was measured at temperature 1, not 0"):
        compared(saved(part(speeds)), saved(part(speeds, temperature=1.0)))
    other = part(speeds)
    other["samples"][0]["prompts"][0]["digest"] = "another text"
    for stranger in (other, part(speeds, batch=4)):
        with pytest.raises(UsageError, match="'new' and 'old' have no prompts in common"):
            compared(saved(part(speeds)), saved(stranger))


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    whole = saved(part({"flexspec": [30.0], "flexspec-plain": [10.0]}))
    with pytest.raises(UsageError, match=r"--compare '.*old\.json' can't be read \(No such file"):
        load_run(path, "--compare")
    without_plain = saved(part({"flexspec": [30.0]}))
    unsteady = saved(part({"flexspec": [30.0], "flexspec-plain": [10.0]}))
    unsteady["results"][0]["samples"][0]["measurements"]["flexspec"]["decode_s"] = 0
    for text, message in (
        (json.dumps(whole)[:-40], "is not JSON"),
        ("[1]", "is not a benchmark's result"),
        ('{"rows": []}', "is not a benchmark's result"),
        (json.dumps(whole | {"version": 2}), "is a result of version 2, and this flexspec reads version 1"),
        (json.dumps(whole | {"results": []}), "is a damaged benchmark's result"),
        (json.dumps(whole | {"results": {"a": 1}}), "is a damaged benchmark's result"),
        (json.dumps(without_plain), "is a damaged benchmark's result"),
        (json.dumps(unsteady), "is a damaged benchmark's result"),
        ("\N{SNOWMAN}", "is not JSON"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=rf"--compare '.*old\.json' {message}"):
            load_run(path, "--compare")
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="is not JSON"):
        load_run(path, "--compare")


def test_the_command(model_folder: str, prompts_file: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    new, old = str(tmp_path / "new.json"), str(tmp_path / "old.json")
    measure = [model_folder, "--prompts", str(prompts_file), "--max-tokens", "4", "--dtype", "float32", "--ssm", "ngram", "--tree", "1"]
    assert run(*measure, "--save", old).exit_code == 0
    again = run(*measure, "--save", new, "--compare", old, "--also", "@2")
    assert again.exit_code == 0, again.output
    assert "this run beside" in again.output and f"only in {'this run'}: @2" in again.output
    loaded = run("--load", new, "--compare", old)
    assert loaded.exit_code == 0, loaded.output
    assert "on the prompts of both" in loaded.output and f"only in {new}: @2" in loaded.output
    for arguments, message in (
        (["--load", new], "give --compare FILE as well"),
        (["--load", new, "--compare", old, "--tree", "2"], "--tree is not allowed with --load"),
        ([model_folder, "--load", new, "--compare", old], "MODEL is not allowed with --load"),
        ([], "MODEL is missing"),
        ([model_folder], "--prompts is missing"),
        ([*measure, "--compare", old, "--temperature", "1"], "was measured at temperature 0, not 1"),
        (["./other", *measure[1:], "--compare", old], "measured "),
        ([*measure, "--batch", "1,x"], "batch='1,x' is not allowed"),
    ):
        refused = run(*arguments)
        assert isinstance(refused.exception, UsageError) and message in str(refused.exception)
