"""Tokens per step in the layout of the paper's Table 2."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from flexspec.bench.paper import CITATION, MODELS, TREE, figures
from flexspec.bench.ratio_text import value_range
from flexspec.bench.report import Row


def tokens_per_step_table(rows: Sequence[Row], labels: Mapping[str, str], *, temperature: float) -> Table:
    """Tokens per step by category and system; the caption tells the paper's own.

    Args:
        rows: of all systems; those that draft nothing, and so make one token a step, are left out.
        labels: what to call the systems.
        temperature: of the run; the paper's figures are those of greedy or stochastic decoding, whichever the run was.
    """
    systems = list(dict.fromkeys(row.system for row in rows if row.drafters))
    cells = {(row.category, row.system): f"{row.tokens_per_step:.2f}" for row in rows}
    table = Table(
        title=f"Tokens per step, {'stochastic' if temperature > 0 else 'greedy'}",
        caption="new tokens over passes of the large model, the pass that ends prefill included; n: prompts; "
        f"{CITATION}, {MODELS}, trees {TREE}: {_paper_tokens_per_step(temperature)}",
        caption_justify="left",
    )
    table.add_column("prompts", overflow="fold")
    for system in systems:
        table.add_column(Text(labels[system]), justify="right", overflow="fold")
    table.add_column("n", justify="right", no_wrap=True)
    for category, prompts in {row.category: row.prompts for row in rows}.items():
        table.add_row(Text(category), *(cells.get((category, system), "") for system in systems), str(prompts))
    return table


def _paper_tokens_per_step(temperature: float) -> str:
    by_width = zip(*(one.tokens_per_step for one in figures(temperature).values()), strict=True)
    return ", ".join(f"{value_range(tokens)} with k={k}" for k, tokens in enumerate(by_width, start=1) if k in (1, 5))
