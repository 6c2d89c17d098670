"""A dry run of the whole program, and what it says when something is wrong."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import pytest
import torch

from flexspec.codegen.device_check import __main__ as command
from flexspec.codegen.device_check import launchers, program
from flexspec.codegen.device_check.launchers import LAUNCHERS
from flexspec.codegen.device_check.numerics import rows as numerics
from flexspec.codegen.device_check.numerics.attention import attention_trials
from flexspec.codegen.device_check.numerics.commit import commit_trials
from flexspec.codegen.device_check.numerics.distributions import distribution_trials
from flexspec.codegen.device_check.numerics.drafting import drafting_trials
from flexspec.codegen.device_check.numerics.rope import rope_trials
from flexspec.codegen.device_check.numerics.splits import split_trials
from flexspec.codegen.device_check.numerics.stochastic import residual_trials
from flexspec.codegen.device_check.numerics.walk import walk_trials
from flexspec.codegen.device_check.part import Context, Part, Row
from flexspec.codegen.device_check.report import PartReport, Report
from flexspec.codegen.device_check.sizes import DRY

CPU = torch.device("cpu")
PARTS = ["numerics", "attention", "operators", "passes tiny", "engine"]
TIMES = {"µs", "GB/s", "floor µs", "share of floor", "eager µs", "compiled µs", "in a graph µs", "ms", "weights GB/s", "tokens/s"}
KERNELS = {
    "tree_attention": attention_trials,
    "combine_splits": split_trials,
    "rope_write": rope_trials,
    "kv_commit": commit_trials,
    "tree_verify": walk_trials,
    "keyed_noise": walk_trials,
    "truncate": distribution_trials,
    "probabilities": distribution_trials,
    "residual": residual_trials,
    "draft_top": drafting_trials,
    "draft_level": drafting_trials,
}


class Run(NamedTuple):
    status: int
    report: dict[str, Any]
    printed: str


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path, lines = tmp_path_factory.mktemp("check") / "report.json", []
    sizes = replace(DRY, layer_trees=(3,), batches=(2,), new_tokens=6)
    report = program.run_check(sizes, CPU, path=path, say=lines.append)
    return Run(int(not report.ok), json.loads(path.read_text()), "\n".join(lines))


def part_of(run: Run, name: str) -> dict[str, Any]:
    (part,) = [part for part in run.report["parts"] if part["name"] == name]
    return part


def run_parts(monkeypatch: pytest.MonkeyPatch, path: Path, *parts: Part) -> Run:
    """The command, with other parts."""
    lines: list[str] = []
    monkeypatch.setattr(program, "check_parts", lambda sizes, device: list(parts))
    monkeypatch.setattr(command, "_say", lines.append)
    status = command.main(["--dry-run", "--json", str(path)])
    return Run(status, json.loads(path.read_text()), "\n".join(lines))


def part(name: str, rows: Callable[[Context], Iterator[Row]]) -> Part:
    return Part(name=name, title=name, seconds=10, rows=rows)


def test_a_dry_run_goes_through(dry_run: Run) -> None:
    assert dry_run.status == 0 and dry_run.report["ok"] is True and dry_run.report["dry_run"] is True
    assert [part["name"] for part in dry_run.report["parts"]] == PARTS
    for one in dry_run.report["parts"]:
        assert one["error"] is None and one["ok"] is True and one["rows"], one["name"]
        assert all(row["ok"] is True for row in one["rows"]), one["rows"]
        assert f"{one['name']}: ok" in dry_run.printed


def test_the_report_says_what_it_was_run_on_and_has_no_times(dry_run: Run) -> None:
    report = dry_run.report
    assert report["version"] == 1 and report["date"].endswith("+00:00") and report["seconds"] > 0
    machine = report["machine"]
    assert machine["gpu"] is None and machine["driver"] is None and torch.__version__.startswith(machine["versions"]["torch"])
    assert {"triton", "python", "flexspec"} <= set(machine["versions"])
    rows = [row for one in report["parts"] for row in one["rows"]]
    assert set().union(*rows) >= TIMES
    assert all(row[name] is None for row in rows for name in TIMES & set(row))


def test_every_kernel_is_compared(dry_run: Run) -> None:
    rows = part_of(dry_run, "numerics")["rows"]
    assert {row["kernel"] for row in rows} == set(LAUNCHERS) == set(KERNELS)
    cases = [(row["kernel"], row["case"]) for row in rows]
    assert len(set(cases)) == len(cases)
    named = " ".join(row["case"] for row in rows if row["kernel"] == "tree_attention")
    assert all(case in named for case in ("splits", "window", "soft cap", "ALiBi", "sinks", "float8", "chains"))


def test_what_is_measured_and_what_is_left_out(dry_run: Run) -> None:
    implementations = [row["implementation"] for row in part_of(dry_run, "attention")["rows"]]
    assert implementations == ["tree_attention", "scaled_dot_product_attention", "tree_attention, fp8 cache", "flex_attention"]
    assert [row["way"] for row in part_of(dry_run, "operators")["rows"]] == ["launcher", "custom_op"]
    assert any("triton_op" in line for line in part_of(dry_run, "operators")["left_out"])
    assert {(row["context"], row["nodes"]) for row in part_of(dry_run, "passes tiny")["rows"]} == {(8, 1), (8, 4)}
    engine = part_of(dry_run, "engine")["rows"]
    assert engine[0]["acceptance"] is None and engine[0]["tokens/step"] == 1
    assert len(engine) == 6 and all(row["as plain"] for row in engine)
    assert max(row["tokens/step"] for row in engine) > 1.5
    assert engine[-1]["acceptance"] == "drafts for itself" and engine[-1]["tokens/step"] >= engine[-2]["tokens/step"]


def spoilt(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel whose numbers are slightly wrong."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        found = kernel(*arguments, **options)
        if found is None:  # `kv_commit`, which changes its arguments
            arguments[0][0, int(arguments[3][0])] += 1
            return None
        first = found if isinstance(found, torch.Tensor) else found[0]
        first.view(-1)[:1] += 1
        return found

    return wrong


@pytest.mark.parametrize("kernel", KERNELS)
def test_wrong_numbers_are_found(kernel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reference = LAUNCHERS[kernel].reference
    monkeypatch.setitem(LAUNCHERS, kernel, launchers.Launchers(LAUNCHERS[kernel].kernel, spoilt(reference)))
    monkeypatch.setattr(numerics, "TRIALS", (KERNELS[kernel],))
    run = run_parts(monkeypatch, tmp_path / "report.json", part("numerics", numerics.numerics_rows))
    assert run.status == 1 and run.report["ok"] is False
    rows = run.report["parts"][0]["rows"]
    assert not any(row["ok"] for row in rows if row["kernel"] == kernel)
    assert all(row["ok"] for row in rows if row["kernel"] != kernel)
    assert "numerics: NOT OK" in run.printed and "NOT all is well" in run.printed


def test_a_kernel_that_fails_does_not_keep_others_from_being_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of\nregisters")

    monkeypatch.setitem(LAUNCHERS, "draft_level", launchers.Launchers(fail, fail))
    monkeypatch.setattr(numerics, "TRIALS", (drafting_trials,))
    run = run_parts(monkeypatch, tmp_path / "report.json", part("numerics", numerics.numerics_rows))
    *others, last = run.report["parts"][0]["rows"]
    assert run.status == 1 and len(others) == 4 and all(row["ok"] for row in others)
    assert last["problem"] == "RuntimeError: out of registers" and last["ok"] is False and "error" not in last


def test_a_part_that_fails_is_reported_with_what_it_found_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def first(context: Context) -> Iterator[Row]:
        yield {"figure": 1.5, "ok": True}
        context.leave_out("something", "no reason")
        raise torch.OutOfMemoryError("too large")

    def second(context: Context) -> Iterator[Row]:
        yield {"figure": float("inf"), "ok": True}

    run = run_parts(monkeypatch, tmp_path / "report.json", part("first", first), part("second", second))
    failed, fine = run.report["parts"]
    assert run.status == 1 and failed["error"] == "OutOfMemoryError: too large" and failed["left_out"] == ["something: no reason"]
    assert failed["rows"] == [{"figure": 1.5, "ok": True}] and failed["ok"] is False
    assert fine["rows"] == [{"figure": "inf", "ok": True}] and fine["ok"] is True
    assert "FAILED: OutOfMemoryError: too large" in run.printed and "left out: something: no reason" in run.printed


def test_what_there_is_no_time_for_is_left_out() -> None:
    context = Context(device=CPU, sizes=DRY, deadline=monotonic() - 1)
    assert list(numerics.numerics_rows(context)) == []
    assert len(context.left_out) == 45 and all("no time was left" in line for line in context.left_out)


def test_unused_time_goes_to_the_parts_that_follow() -> None:
    parts = [Part(name=str(seconds), title="", seconds=seconds, rows=lambda context: iter(())) for seconds in (10, 30, 60)]
    now = monotonic()
    for place, share in enumerate((0.1, 1 / 3, 1.0)):
        context = program._context(DRY, CPU, parts[place:], now + 1000)
        assert context.deadline - now == pytest.approx(1000 * share, abs=2)


def test_the_program_ends_in_time_even_if_the_device_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(program.os, "_exit", statuses.append)
    report, path = Report(date="", is_dry=False, machine={}, parts=[PartReport(name="stuck")]), tmp_path / "report.json"
    with program._limit(report, path, lambda line: None, seconds=0.0):
        for _ in range(200):
            sleep(0.01)
            if statuses:
                break
    assert statuses == [1] and "had not ended" in json.loads(path.read_text())["parts"][0]["error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_stops(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert command.main(["--json", str(path)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "no GPU is visible" in said.err and not said.out and not path.exists()


def test_an_interpreter_of_kernels_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert command.main([]) == 2
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err
