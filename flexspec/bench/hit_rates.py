"""Top-k hit rates in the layout of the paper's Table 1."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from flexspec.bench.paper import CITATION, MODELS, figures
from flexspec.bench.report import ALL
from flexspec.runtime.draft_counts import DraftCounts, HitCount

WIDTHS = range(1, 6)
"""The k of the columns."""


def hit_rate_table(
    drafts: Mapping[str, Mapping[str, DraftCounts]],
    labels: Mapping[str, str] | None = None,
    *,
    temperature: float = 0.0,
    with_paper: bool = False,
) -> Table:
    """By system and category, the share of the steps in which one of the root's first k children was accepted.

    A system of several drafters has rows for all of them together, where the first k of each count, and one for each alone.

    Args:
        drafts: by system, then by category, `all` for all of them.
        labels: what to call the systems; without them by their names.
        temperature: of the run.
        with_paper: whether the paper's figures for greedy or stochastic decoding, whichever the run was, come last.
    """
    table = Table(
        title=f"Top-k hit rates, {'stochastic' if temperature > 0 else 'greedy'}",
        caption="share of the n steps that drafted anything in which one of the first k children of the root was accepted; "
        "≥: some of these steps had fewer than k children; blank: none had k",
        caption_justify="left",
    )
    table.add_column("prompts", overflow="fold")
    for k in WIDTHS:
        table.add_column(f"k={k}", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for system, by_category in drafts.items():
        table.add_section()
        table.add_row(Text(labels[system] if labels else system, style="bold"))
        for name, hits in _rows(by_category):
            table.add_row(Text(name), *_rates(hits), str(hits[1].steps) if hits else "0")
    if with_paper:
        table.add_section()
        table.add_row(Text(f"{CITATION}, {MODELS}", style="bold"))
        for name, paper in figures(temperature).items():
            table.add_row(name, *(f"{rate:.0%}" for rate in paper.hit_rates))
    return table


def _rows(by_category: Mapping[str, DraftCounts]) -> Iterator[tuple[str, Mapping[int, HitCount]]]:
    for category, counts in by_category.items():
        yield category, counts.hits()
    everything = by_category[ALL]
    drafters = everything.by_drafter()
    if len(drafters) > 1:
        for drafter in drafters:
            yield f"{ALL}, {drafter} alone", everything.hits(drafter)


def _rates(hits: Mapping[int, HitCount]) -> Sequence[str]:
    return [f"{'' if hits[k].is_complete else '≥ '}{hits[k].rate:.0%}" if k in hits else "" for k in WIDTHS]
