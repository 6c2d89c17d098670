"""Tokens per step as a table."""

import io

from rich.console import Console
from rich.table import Table

from flexspec.bench.report import Row
from flexspec.bench.tokens_per_step import tokens_per_step_table


def shown(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    return out.getvalue()


def rows(*systems: str, drafters: tuple[str, ...] = ("suffix",)) -> list[Row]:
    """A row for each system on all prompts and on one category."""
    return [
        Row(
            system=system,
            drafters=drafters,
            tree=[2, 1] if drafters else [],
            category=category,
            tokens_per_s=123.4,
            tokens_per_step=1.5,
            prompts=3,
            new_tokens=384,
            prefill_s=0.25,
        )
        for category in ("all", "qa")
        for system in systems
    ]


def test_what_drafts_is_shown_and_the_papers_figures_below() -> None:
    both = rows("flexspec", "hf-lookup") + rows("flexspec-plain", drafters=())
    labels = {row.system: row.system for row in both}
    text = shown(tokens_per_step_table(both, labels, temperature=0))
    assert "hf-lookup" in text and "flexspec-plain" not in text and text.count("1.50") == 4 and "greedy" in text
    assert "2.18\N{EN DASH}2.95 with k=1" in " ".join(text.split())
    stochastic = " ".join(shown(tokens_per_step_table(both, labels, temperature=1)).split())
    assert "stochastic" in stochastic and "1.64\N{EN DASH}1.79 with k=1, 2.21\N{EN DASH}2.38 with k=5" in stochastic


def test_many_systems_lose_nothing() -> None:
    many = rows(*(f"system-{letter}" for letter in "ABCDEFGH"))
    text = shown(tokens_per_step_table(many, {row.system: row.system for row in many}, temperature=0))
    assert text.count("1.50") == 16 and "…" not in text
