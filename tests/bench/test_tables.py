"""Tables fit 80 columns."""

import io

from rich.console import Console
from rich.table import Table

from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.bench.step_times import StepTimes
from flexspec.bench.tables import ratio_table, speed_table, speedup_table, step_time_table, tree_labels
from flexspec.bench.tokens_per_step import tokens_per_step_table
from flexspec.runtime.stats import PHASES, Profile

LONG = "flexspec depth=8,branch=4,budget=32"
RATIO = Ratio(value=1.5, low=1.25, high=1.75)


def shown(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    return out.getvalue()


def row(system: str, category: str = "all", *, drafters: tuple[str, ...] = ("suffix",)) -> Row:
    limits = {"depth": 8, "branch": 4, "budget": 32}
    return Row(
        system=system,
        drafters=drafters,
        tree=limits if system == LONG else [2, 1],
        category=category,
        tokens_per_s=123.4,
        tokens_per_step=1.5,
        prompts=3,
        new_tokens=384,
        prefill_s=0.25,
    )


def test_trees_given_as_limits_have_short_labels_with_a_legend() -> None:
    rows = [row("flexspec"), row("flexspec 2,1"), row(LONG)]
    labels = tree_labels(rows)
    assert labels == {"flexspec": "flexspec", "flexspec 2,1": "flexspec 2,1", LONG: "flexspec A"}
    speeds = " ".join(shown(speed_table(rows, labels)).split())
    assert "flexspec A drafts with suffix, tree adaptive, at most 8 deep" in speeds and "384" in speeds
    labels = tree_labels([*rows, row("flexspec-plain")])
    ratios = {f"flexspec/{LONG}": RATIO, f"{LONG}/flexspec-plain": RATIO}
    text = shown(ratio_table(ratios, labels))
    assert "flexspec/flexspec A " in text and "flexspec A/flexspec-plain" in text and text.count("1.250 to 1.750") == 2
    assert "flexspec A" in shown(speedup_table({"mathematics": {LONG: RATIO}}, labels))


def test_categories_and_drafters_are_no_markup() -> None:
    rows = [row("[/]", "[red]", drafters=("[/b]",))]
    labels = tree_labels(rows)
    assert "[red]" in shown(speed_table(rows, labels)) and "drafts with [/b]" in shown(speed_table(rows, labels))
    assert "[red]" in shown(tokens_per_step_table(rows, labels, temperature=0)) and "[/]" in shown(
        speedup_table({"[red]": {"[/]": RATIO}}, labels)
    )


def test_drafting_is_bookkeeping_where_it_runs_no_model() -> None:
    profile = Profile(steps=2, seconds=dict.fromkeys(PHASES, 0.5) | {"forward": 2.0})
    times = {name: StepTimes.of(profile, drafters_run_models=name == "ssm") for name in ("ssm", "suffix")}
    text = shown(step_time_table(times, {name: name for name in times}))
    cells = [line.strip("\N{BOX DRAWINGS LIGHT VERTICAL}").split("\N{BOX DRAWINGS LIGHT VERTICAL}") for line in text.splitlines()]
    rows = {name.strip(): [one.strip() for one in rest] for name, *rest in cells if rest}
    assert rows["forward"] == ["1000.000"] * 2 and rows["whole step"] == ["2500.000"] * 2 and rows["steps"] == ["2", "2"]
    assert rows["bookkeeping"] == ["50.0%", "60.0%"]
