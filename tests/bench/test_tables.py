"""Tables fit 80 columns."""

import io

from rich.console import Console
from rich.table import Table

from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.bench.tables import category_table, profile_table, ratio_table, speed_table, tree_labels
from flexspec.runtime.stats import PHASES, Profile

LONG = "flexspec depth=8,branch=4,budget=32"
RATIO = Ratio(value=1.5, low=1.25, high=1.75)


def shown(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    return out.getvalue()


def row(system: str) -> Row:
    limits = {"depth": 8, "branch": 4, "budget": 32}
    return Row(
        system=system,
        drafters=["suffix"],
        tree=limits if system == LONG else [2, 1],
        category="all",
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
    ratios = {f"flexspec/{LONG}": RATIO, f"{LONG}/flexspec-plain": RATIO}
    text = shown(ratio_table(ratios, labels))
    assert "flexspec/flexspec A " in text and "flexspec A/flexspec-plain" in text and text.count("1.250 to 1.750") == 2
    assert "flexspec/flexspec A " in shown(category_table({"mathematics": ratios}, labels))
    profile = Profile(steps=2, seconds=dict.fromkeys(PHASES, 0.5))
    assert "flexspec A" in shown(profile_table({LONG: profile}, labels, drafters_run_models=False))
