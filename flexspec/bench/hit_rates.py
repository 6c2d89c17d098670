"""Top-k hit rates in the layout of the paper's Table 1."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.paper import CITATION, MODELS, figures
from flexspec.bench.report import ALL
from flexspec.runtime.draft_counts import HitCount

WIDTHS = range(1, 6)
"""The k of the columns."""


def hit_rate_table(drafts: Mapping[str, Mapping[str, DraftReport]], labels: Mapping[str, str], *, temperature: float) -> Table:
    """By system and category, the share of the steps in which one of the root's first k children was accepted; last, the paper's own.

    A system of several drafters has rows for all of them together, where the first k of each count, and one for each alone.

    Args:
        drafts: by system, then by category, `all` for all of them.
        labels: what to call the systems.
        temperature: of the run; the paper's figures are those of greedy or stochastic decoding, whichever the run was.
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
        table.add_row(Text(labels[system], style="bold"))
        for name, hits in _rows(by_category):
            table.add_row(Text(name), *_rates(hits), str(hits[1].steps) if hits else "0")
    table.add_section()
    table.add_row(Text(f"{CITATION}, {MODELS}", style="bold"))
    for name, paper in figures(temperature).items():
        table.add_row(name, *(f"{rate:.0%}" for rate in paper.hit_rates))
    return table


def _rows(by_category: Mapping[str, DraftReport]) -> Iterator[tuple[str, Mapping[int, HitCount]]]:
    for category, report in by_category.items():
        yield category, report.everything.hits
    drafters = by_category[ALL].drafters
    if len(drafters) > 1:
        for name, view in drafters.items():
            yield f"{ALL}, {name} alone", view.hits


def _rates(hits: Mapping[int, HitCount]) -> Sequence[str]:
    return [f"{'' if hits[k].is_complete else '≥ '}{hits[k].rate:.0%}" if k in hits else "" for k in WIDTHS]
