"""Top-k hit rates as a table."""

import io
from collections.abc import Mapping
from itertools import takewhile

from rich.console import Console

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.hit_rates import hit_rate_table
from flexspec.bench.paper import GREEDY, NAIVE_TO_MSS, STOCHASTIC
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.tree_builder import TreeBuilder


def counts(accepted: int, *, widths: tuple[int, ...] = (2,), names: tuple[str, ...] = ("head",)) -> DraftReport:
    """A step for each of `widths`, in which all drafters gave the root that many children and that of rank `accepted` was right."""
    found = DraftCounts()
    for width in widths:
        builder = TreeBuilder(1)
        for token in range(width):
            builder.add(0, token)
        path = [0, 1 + accepted] if accepted < width else [0]
        found.record(merge_trees(1, [(name, builder.build()) for name in names]), path, len(path))
    return DraftReport.of(found)


def lines(drafts: Mapping[str, Mapping[str, DraftReport]], *, temperature: float = 0.0) -> list[list[str]]:
    """Cells of the table; `other` is called `flexspec A` there."""
    out = io.StringIO()
    labels = {"flexspec": "flexspec", "other": "flexspec A"}
    Console(file=out, width=80).print(hit_rate_table(drafts, labels, temperature=temperature))
    assert "…" not in out.getvalue()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.getvalue().splitlines() if line.startswith("│")]


def our_lines(drafts: Mapping[str, Mapping[str, DraftReport]]) -> list[list[str]]:
    """Those above the paper's."""
    return list(takewhile(lambda cells: not cells[0].startswith("Miao"), lines(drafts)))


def test_shares_by_category_with_their_counts() -> None:
    drafts = {"flexspec": {"all": counts(1, widths=(2, 1)), "[/]": counts(0)}, "other": {"all": counts(1, widths=(2, 2, 2))}}
    assert our_lines(drafts) == [
        ["flexspec", "", "", "", "", "", ""],
        ["all", "0%", "≥ 50%", "", "", "", "2"],
        ["[/]", "100%", "100%", "", "", "", "1"],
        ["flexspec A", "", "", "", "", "", ""],
        ["all", "0%", "100%", "", "", "", "3"],
    ]


def test_several_drafters_have_rows_of_their_own() -> None:
    drafts = {"flexspec": {"all": counts(0, names=("suffix", "head"))}}
    assert [line[0] for line in our_lines(drafts)] == ["flexspec", "all", "all, suffix alone", "all, head alone"]


def test_drafts_of_which_none_hung_on_a_root_that_was_tried() -> None:
    assert our_lines({"flexspec": {"all": counts(0), "qa": DraftReport.of(DraftCounts())}})[-1] == ["qa", "", "", "", "", "", "0"]


def test_the_papers_figures_stand_below() -> None:
    drafts = {"flexspec": {"all": counts(0)}}
    assert ["Alpaca", "68%", "77%", "81%", "84%", "85%", ""] in lines(drafts)
    assert lines(drafts, temperature=1.0)[-1] == ["PIQA", "55%", "82%", "91%", "95%", "97%", ""]


def test_the_papers_figures_grow_with_k() -> None:
    assert set(GREEDY) == set(STOCHASTIC) == set(NAIVE_TO_MSS)
    for figures in (*GREEDY.values(), *STOCHASTIC.values()):
        for row in (figures.hit_rates, figures.tokens_per_step):
            assert len(row) == 5 and list(row) == sorted(set(row))
    # Table 3 repeats the last column of Table 2's stochastic half.
    assert {name: mss for name, (_, mss) in NAIVE_TO_MSS.items()} == {name: row.tokens_per_step[-1] for name, row in STOCHASTIC.items()}
