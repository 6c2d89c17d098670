from types import SimpleNamespace
from typing import Any

from flexspec.calibration.report.measured import Workload
from flexspec.calibration.report.measured_text import constants, details, summary, verdicts
from flexspec.calibration.report.priced import Form

PLAIN, CHAIN, TWO = Form(1, 1, 1, 0), Form(1, 1, 1, 4), Form(1, 1, 2, 4)


def candidate(ms: float) -> Any:
    predicted = SimpleNamespace(ms_per_token=ms, tokens_per_step=2.0, parts={"host": 0.1, "collectives": 0.2})
    return SimpleNamespace(predicted=predicted)


def workload(title: str, measured: dict[Form, float], predicted: dict[Form, float]) -> Workload:
    times = {form: [ms * 1e-3 * jitter for jitter in (0.99, 1.0, 1.01)] for form, ms in measured.items()}
    return Workload(
        model=title, batch=1, predicted={form: [candidate(0.9 * ms), candidate(1.1 * ms)] for form, ms in predicted.items()}, times=times
    )


RIGHT = workload("small", {PLAIN: 4, CHAIN: 2, TWO: 3}, {PLAIN: 4.2, CHAIN: 2.1, TWO: 2.9})
WRONG = workload("wide", {PLAIN: 9, CHAIN: 8, TWO: 4}, {PLAIN: 9, CHAIN: 3, TWO: 4})


def test_forms_have_names() -> None:
    assert [str(form) for form in (PLAIN, TWO, Form(2, 2, 1, 8, 2))] == ["1 rank, n = 0", "TP 2, n = 4", "DP 2 x PP 2, 2 in flight, n = 8"]


def test_the_summary_names_choice_and_best() -> None:
    right, wrong = summary([RIGHT, WRONG]).split("\n")[2:4]
    assert [cell.strip() for cell in right.split("|")[1:5]] == ["small, batch 1", "1 rank, n = 4", "1 rank, n = 4", "1.00"]
    assert [cell.strip() for cell in wrong.split("|")[1:5]] == ["wide, batch 1", "1 rank, n = 4", "TP 2, n = 4", "2.00"]


def test_verdicts_say_whether_bars_are_met() -> None:
    regrets, _, optima = verdicts([RIGHT])
    assert "1.000 at most (bar: 1.05; met)" in regrets
    assert "over the workloads: 1" in optima
    regrets, ranks, optima = verdicts([RIGHT, WRONG])
    assert "2.000 at most (bar: 1.05; missed)" in regrets
    assert "6 strategies" in ranks
    assert "over the workloads: 2 (1 rank, n = 4; TP 2, n = 4)" in optima


def test_constant_choices_stand_beside_the_searchs() -> None:
    lines = constants([RIGHT, WRONG]).split("\n")
    assert "**the search's choice**" in lines[2]
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == ["always TP 2, n = 4", "1.50", "1.00", "1.50"]


def test_a_constant_choice_that_cannot_be_everywhere_comes_last() -> None:
    more = workload("more", {PLAIN: 1, Form(2, 1, 1, 0): 1}, {PLAIN: 1, Form(2, 1, 1, 0): 1})
    last = constants([RIGHT, more]).split("\n")[-1]
    assert "cannot be" in last


def test_details_are_sorted_by_time_and_mark_the_choice() -> None:
    lines = details(WRONG).split("\n")[2:]
    assert [line.split("|")[1].strip().strip("*") for line in lines] == ["TP 2, n = 4", "1 rank, n = 4", "1 rank, n = 0"]
    assert "-62%" in lines[1]
    assert "**1 rank, n = 4**" in lines[1]
