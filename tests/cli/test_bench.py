"""The command `flexspec bench` on results that were saved, and with options that don't go together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench_results import PATH, bench_result
from flexspec.bench.result_json import results_to_json
from flexspec.cli.bench import bench
from flexspec.errors import UsageError

app = typer.Typer()
app.command()(bench)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A benchmark of two batch sizes, the second one interrupted."""
    one = bench_result()
    settings = one.settings | {"batches": [1, 4]}
    results = [replace(one, settings=settings), replace(one, settings=settings | {"batch": 4}, interrupted=True)]
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(results_to_json(results)))
    return str(path)


def test_a_saved_run_gives_all_reports(saved: str, tmp_path: Path) -> None:
    chart, report = tmp_path / "chart.svg", tmp_path / "report.md"
    shown = run("--load", saved, "--profile", "--markdown", str(report), "--plot", str(chart))
    assert shown.exit_code == 0, shown.output  # that it was interrupted is told, and no mistake of this command
    for part in ("prefill told apart, batch 4", "Top-k hit rates, greedy, batch 1", "PIQA", "2.18\N{EN DASH}2.95", "bookkeeping"):
        assert part in shown.output
    assert "tiny in float32 on CPU, 2 threads" in shown.output and "batch 4: interrupted: these are" in shown.output
    assert report.read_text().startswith("# Decoding speed of tiny\n") and chart.read_bytes().startswith(b"<?xml")


def test_two_saved_runs_beside_each_other(saved: str, tmp_path: Path) -> None:
    one = bench_result()
    (tmp_path / "old.json").write_text(json.dumps(results_to_json([replace(one, machine={**one.machine, "cpu": "other"})])))
    shown = run("--load", saved, "--compare", str(tmp_path / "old.json"))
    assert shown.exit_code == 0, shown.output
    assert "on the prompts of both" in shown.output and f"only in {saved}: batch 4" in shown.output
    assert "The machines differ" in shown.output


def test_what_does_not_go_together(saved: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}')
    measure = ["tiny", "--prompts", str(prompts)]
    alone = replace(bench_result(), ratios={}, ratios_by_category={}, drafts={})
    plain = [row for row in alone.rows if row.system == "flexspec-plain"]
    samples = [replace(one, measurements={"flexspec-plain": one.measurements["flexspec-plain"]}) for one in alone.samples]
    times = {"flexspec-plain": alone.step_times["flexspec-plain"]}
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(results_to_json([replace(alone, rows=plain, samples=samples, step_times=times)])))
    for arguments, message in (
        (["--load", saved, "--tree", "2"], "--tree is not allowed with --load"),
        (["--load", saved, "--save", saved], "--save is not allowed with --load"),
        (["tiny", "--load", saved], "MODEL is not allowed with --load"),
        (["--load", str(path), "--plot", str(tmp_path / "chart.svg")], "there is nothing to compare with"),
        (["--load", saved, "--plot", str(tmp_path / "chart.pdf")], "give a file that ends in"),
        ([], "MODEL is missing"),
        (["tiny"], "--prompts is missing"),
        ([*measure, "--compare", saved, "--temperature", "1"], "was measured at temperature 0, not 1"),
        (["./other", *measure[1:], "--compare", saved], "measured tiny, not ./other"),
        ([*measure, "--batch", "1,x"], "batch='1,x' is not allowed"),
        ([*measure, "--plot", str(tmp_path / "chart.svg"), "--ssm", "none"], "there is nothing to compare with"),
    ):
        refused = run(*arguments)
        assert isinstance(refused.exception, UsageError) and message in str(refused.exception), (arguments, refused.output)


def test_a_report_that_can_not_be_written_keeps_nothing_from_the_terminal(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    for option, name in (("--markdown", "report.md"), ("--plot", "chart.png")):
        shown = run("--load", saved, option, str(tmp_path / name))
        assert isinstance(shown.exception, UsageError) and f"{option} '" in str(shown.exception)
        assert "can't be written (No space left on device)" in str(shown.exception)
        assert PATH in shown.output
