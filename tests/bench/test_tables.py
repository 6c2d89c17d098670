"""Tables fit 80 columns."""

import io
from typing import Any

from rich.console import Console
from rich.table import Table

from flexspec.bench.contenders import ComparisonConfig
from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.bench.tables import (
    category_table,
    profile_table,
    ratio_table,
    speed_table,
    speedup_table,
    tokens_per_step_table,
    tree_labels,
    verifier_table,
)
from flexspec.bench.verifier_comparison import ComparisonResult, ComparisonRow
from flexspec.runtime.stats import PHASES, Profile
from flexspec.tree_shape import TreeSpec

LONG = "flexspec depth=8,branch=4,budget=32"
LLM_OF_NONE: Any = None
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
    assert "flexspec/flexspec A " in shown(category_table({"mathematics": ratios}, labels))
    profile = Profile(steps=2, seconds=dict.fromkeys(PHASES, 0.5))
    assert "flexspec A" in shown(profile_table({LONG: profile}, labels, drafters_run_models=False))


def test_categories_and_drafters_are_no_markup() -> None:
    rows = [row("[/]", "[red]", drafters=("[/b]",))]
    labels = tree_labels(rows)
    assert "[red]" in shown(speed_table(rows, labels)) and "drafts with [/b]" in shown(speed_table(rows, labels))
    assert "[red]" in shown(tokens_per_step_table(rows, labels)) and "[/]" in shown(speedup_table({"[red]": {"[/]": RATIO}}, labels))


def test_tokens_per_step_of_what_drafts() -> None:
    rows = [row(system, category) for category in ("all", "qa") for system in ("flexspec", "hf-lookup")]
    rows += [row("flexspec-plain", category, drafters=()) for category in ("all", "qa")]
    text = shown(tokens_per_step_table(rows))
    assert "hf-lookup" in text and "flexspec-plain" not in text and text.count("1.50") == 4 and "greedy" in text
    assert "flexspec-plain" in shown(tokens_per_step_table(rows[-2:]))
    paper = " ".join(shown(tokens_per_step_table(rows, temperature=1.0, with_paper=True)).split())
    assert "stochastic" in paper and "1.64\N{EN DASH}1.79 with k=1, 2.21\N{EN DASH}2.38 with k=5" in paper


def test_many_systems_lose_nothing() -> None:
    rows = [row(f"system-{letter}") for letter in "ABCDEFGH"]
    text = shown(tokens_per_step_table(rows))
    assert text.count("1.50") == 8 and "…" not in text


def test_verifiers_in_the_papers_order() -> None:
    config = ComparisonConfig(model="m", tree="2,1", temperatures=[1.0], ssms=["ngram"])
    rows = [
        ComparisonRow(
            temperature=1.0,
            contender=str(one),
            verifier=one.verifier,
            tokens_per_step=RATIO,
            drafted_per_step=3.0,
            acceptance=Ratio(value=0.15, low=0.125, high=0.175),
            ratio=RATIO,
            over_naive=None if one.alpha == 0 else Ratio(value=1.1, low=1.0, high=1.2),
            learned_alphas={"prune:26": 1.5, "head": 0.6} if str(one).endswith("learned") else {},
            drafted=100,
            accepted=15,
            tokens=100,
        )
        for one in config.contenders()
    ]
    tree = TreeSpec(widths=(2, 1))
    text = shown(verifier_table(ComparisonResult(llm=LLM_OF_NONE, tree=tree, reference="r", prompts=2, settings={}, rows=rows)))
    assert "…" not in text
    names = ["naive sampling", "point_mass", "mss", "without_replacement", "traversal", "coupled, alpha 0.5", "coupled, alpha 1"]
    first_cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert [cell for cell in first_cells if cell] == [
        "temperature 1",
        *names,
        "coupled, alpha",
        "learned: 1.5, 0.6",
        "Miao et al. 2024",
        "naive sampling",
        "mss",
    ]
    assert text.count("1.00\N{EN DASH}1.20") == 7 and "1.27\N{EN DASH}1.28" in text and "12.5\N{EN DASH}17.5%" in text
    assert "trees ⟨1,1,5,1,1,1,1,1⟩" in " ".join(text.split())
