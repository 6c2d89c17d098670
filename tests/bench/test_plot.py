"""The chart of acceptance by depth."""

import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from flexspec.bench.plot import _draw, check_plot, plot_acceptance
from flexspec.errors import UsageError
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.tree_builder import TreeBuilder


def counts() -> DraftCounts:
    """Two drafters' chains, of which one goes on where the other ends."""
    proposals = []
    for name, tokens in (("ngram", (5, 6, 7)), ("prune:1", (5,))):
        builder = TreeBuilder(1)
        node = 0
        for token in tokens:
            node = builder.add(node, token)
        proposals.append((name, builder.build()))
    found = DraftCounts()
    found.record(merge_trees(1, proposals), [0, 1, 2], 3)
    return found


@pytest.mark.parametrize(("name", "magic"), [("chart.png", b"\x89PNG"), ("chart.svg", b"<?xml")])
def test_png_and_svg_by_the_files_name(tmp_path: Path, name: str, magic: bytes) -> None:
    path = tmp_path / name
    check_plot(path, ["ngram"])
    plot_acceptance({"flexspec": counts(), "flexspec 1,1": DraftCounts()}, path)
    content = path.read_bytes()
    assert content.startswith(magic)
    if name.endswith("svg"):
        assert b"flexspec 1,1" in content and b"ngram" in content


def test_depths_that_no_step_got_to_are_left_out() -> None:
    builder = TreeBuilder(1)
    builder.add(builder.add(0, 5), 6)
    found = DraftCounts()
    found.record(merge_trees(1, [("ngram", builder.build())]), [0], 1)
    assert repr(found) == "DraftCounts(2 drafted, 1 tried, 0 accepted)"
    panel = Figure().subplots()
    _draw(panel, "flexspec depth=8,branch=4,budget=32", found)
    assert list(panel.get_xticks()) == [1] and len(panel.patches) == 1
    assert [list(line.get_xdata()) for line in panel.get_lines()] == [[1]]
    assert panel.get_title().count("\n") == 1


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"chart\.pdf' is not allowed: give a file that ends in \.png or \.svg"):
        check_plot(tmp_path / "chart.pdf", ["ngram"])
    with pytest.raises(UsageError, match="there are none: give --ssm"):
        check_plot(tmp_path / "chart.png", [])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'flexspec\[plot\]'"):
        check_plot(tmp_path / "chart.png", ["ngram"])
