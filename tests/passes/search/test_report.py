"""Reports of searches: tables, files, comparisons, charts."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from flexspec.errors import UsageError
from flexspec.parallel import ParallelPlan
from flexspec.passes.search.explain import diff, explain
from flexspec.passes.search.plot import check_plot, plot_front
from flexspec.passes.search.report_file import read_report
from flexspec.passes.search.result import Candidate, Prediction, SearchResult
from flexspec.passes.search.space import Workload
from flexspec.strategy import Strategy, load_strategy

FIELDS = ["choice", "predicted", "baseline", "runner_up", "pareto", "candidates", "pruned", "unused_devices", "seconds"]
PREDICTED = ["step_ms", "tokens_per_step", "ms_per_token", "tokens_per_s", "memory_gb_per_device", "parts"]


def candidate(tp: int, step_ms: float, tree: int = 0) -> Candidate:
    strategy = Strategy(
        dtype="bfloat16",
        drafters=("small",) if tree else (),
        tree={"depth": 4, "branch": 2, "budget": tree} if tree else (),  # type: ignore[arg-type]
        parallel=ParallelPlan(tp=tp, placement={"small": "beside the model"} if tree else {}),
    )
    expected = 2.0 if tree else 1.0
    predicted = Prediction(
        step_ms=step_ms,
        tokens_per_step=expected,
        ms_per_token=step_ms / expected,
        tokens_per_s=1e3 * expected / step_ms,
        memory_gb_per_device=40.0 / tp,
        parts={"linear": step_ms * 0.75, "host": step_ms * 0.25},
        memory_parts={"weights": 40.0 / tp},
    )
    return Candidate(strategy=strategy, batch=1, requests=1, predicted=predicted)


def result(step_ms: float = 6.0, *, baseline: Candidate | None = None) -> SearchResult:
    best = candidate(4, step_ms, tree=8)
    return SearchResult(
        model="some-model",
        hardware="h100x8",
        devices=8,
        workload=Workload(),
        ranking=[best, candidate(2, 9.0, tree=8)],
        baseline=baseline,
        incremental=candidate(4, 5.0),
        pareto=[best, candidate(2, 9.0, tree=8)],
        binding="time: linear takes 75% of a step",
        notes=["an estimate"],
        candidates=123,
        pruned={"memory": 45},
        skipped=[],
        seconds=0.5,
        capture_seconds=0.25,
    )


def shown(what: RenderableType) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))
    with console.file:
        console.print(what)
        return console.export_text()


def test_the_json_has_the_promised_fields() -> None:
    content = result(baseline=candidate(1, 20.0)).to_json()
    assert list(content) == FIELDS
    assert {"dp", "pp", "tp", "tree_size", "drafters", "placement"} <= set(content["choice"])
    assert list(content["predicted"]) == PREDICTED
    for one in (content["baseline"], content["runner_up"], *content["pareto"]):
        assert {"dp", "pp", "tp", "tree_size", *PREDICTED} <= set(one)
    assert content["unused_devices"] == 4 and content["predicted"]["ms_per_token"] == 3.0
    assert result().to_json()["baseline"] is None
    json.dumps(content)


def test_an_exported_strategy_explains_itself_and_still_is_a_strategy(tmp_path: Path) -> None:
    found = result()
    path = tmp_path / "strategy.json"
    found.strategy.save(path, found.report())
    assert load_strategy(path) == found.strategy
    text = shown(explain(read_report(path)))
    for part in ("some-model on h100x8", "tp 4, tree of 8 by small (beside the model)", "runner-up", "does not fit", "without speculation"):
        assert part in text
    assert "linear takes 75% of a step" in text and "4 devices are left unused" in text and "memory 45" in text and "an estimate" in text
    assert "none is measured" in text


def test_a_json_file_is_explained_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(json.dumps(result(baseline=candidate(1, 20.0)).to_json()))
    text = shown(explain(read_report(path)))
    assert "tp 4, tree of 8" in text and "one device, no speculation" in text and "does not fit" not in text


def test_two_reports_are_compared(tmp_path: Path) -> None:
    text = shown(diff("a", result(6.0).report(), "b", result(3.0).report()))
    assert "0.50" in text and "2.00" in text and "linear, ms" in text and "tp" not in text.replace("step", "")
    other = {**result().report(), "choice": {**result().report()["choice"], "tp": 2}}
    assert "tp" in shown(diff("a", result().report(), "b", other))


def damaged(change: dict[str, Any]) -> str:
    return json.dumps({**result().to_json(), **change})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not JSON"),
        ("[1]", "'choice' is missing"),
        ('{"version": 2, "dtype": "float32"}', "has no report of a search"),
        ('{"version": 9}', "is not a strategy of version 2"),
        (damaged({"predicted": 3}), "'predicted' with its 'parts' is missing"),
        (damaged({"pareto": {}}), "'pareto' and 'pruned'"),
        (damaged({"baseline": {"tp": 1}}), "dp=None"),
        (damaged({"runner_up": 7}), "7 is no strategy"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_report(path)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"report 'missing\.json' can't be read"):
        read_report("missing.json")


def test_the_front_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "front.svg"
    check_plot(path)
    plot_front(result(baseline=candidate(1, 20.0)).report(), path)
    assert path.read_text().count("<path") > 10
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        check_plot(tmp_path / "front.txt")
    with pytest.raises(UsageError, match="can't be written"):
        plot_front(result().report(), tmp_path / "missing" / "front.svg")
