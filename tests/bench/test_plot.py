"""The chart of speed-ups and of acceptance by depth."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench_results import CATEGORIES, PATH, bench_result
from flexspec.bench.draft_report import DraftReport
from flexspec.bench.plot import _acceptance_rows, _draw_acceptance, _draw_speedups, check_plot, plot_result
from flexspec.bench.speedups import speedups_over_plain
from flexspec.bench.statistics import Ratio
from flexspec.errors import UsageError
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.tree_builder import TreeBuilder


@pytest.mark.parametrize(("name", "magic"), [("chart.png", b"\x89PNG"), ("chart.svg", b"<?xml")])
def test_png_and_svg_by_the_files_name(tmp_path: Path, name: str, magic: bytes) -> None:
    path = tmp_path / name
    check_plot(path, ["flexspec"])
    plot_result([bench_result()], path)
    content = path.read_bytes()
    assert content.startswith(magic)
    if name.endswith("svg"):
        assert all(text in content for text in (b"hf", b"suffix", b"qa", b"./ssms/a|b"))


def test_batch_sizes_have_panels_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    one = bench_result()
    other = replace(one, settings=one.settings | {"batch": 4}, drafts={PATH: one.drafts[PATH]})
    plot_result([one, other], path)
    content = path.read_text()
    assert content.count("decode speed over plain") == 2 and "batch 1 -->" in content and f"{PATH}, batch 4" in content
    assert content.count("share of the steps that got there") == 2


def test_many_systems_take_several_rows() -> None:
    one = bench_result()
    many = {f"flexspec {n}": one.drafts["flexspec"] for n in range(5)}
    assert [[panel.title for panel in row] for row in _acceptance_rows(replace(one, drafts=many), [one])] == [
        list(many)[:4],
        list(many)[4:],
    ]


def test_peers_are_shown_without_drafters(tmp_path: Path) -> None:
    check_plot(tmp_path / "chart.svg", ["hf"])
    ratios = {"flexspec-plain/hf": Ratio(value=4.0, low=None, high=None)}
    plot_result([replace(bench_result(), drafts={}, ratios=ratios, ratios_by_category={})], tmp_path / "chart.svg")
    assert "share of the steps" not in (tmp_path / "chart.svg").read_text()
    # All texts may have ended with their first token; then there is no speed.
    plot_result([replace(bench_result(), drafts={}, ratios={}, ratios_by_category={})], tmp_path / "chart.svg")


def test_bars_by_category_with_their_intervals() -> None:
    panel = Figure().subplots()
    _draw_speedups(panel, speedups_over_plain(bench_result()), ["flexspec", "flexspec-plain", PATH, "hf"])
    assert [label.get_text() for label in panel.get_xticklabels()] == ["all", "qa", r"[/] *maths* \$x\$"]
    assert [round(bar.get_height(), 2) for bar in panel.patches] == [1.5] * 3 + [1.25] * 3 + [0.5] * 3
    centres = sorted(bar.get_x() + bar.get_width() / 2 for bar in panel.patches)
    assert [round(centre) for centre in centres] == [place for place in range(len(CATEGORIES)) for _ in range(3)]
    reach = panel.containers[1].errorbar.lines[2][0].get_segments()[0]
    assert [round(float(height), 6) for _, height in reach] == [1.25, 2.0]  # uneven, as the interval is


def test_depths_that_no_step_got_to_are_left_out() -> None:
    builder = TreeBuilder(1)
    builder.add(builder.add(0, 5), 6)
    found = DraftCounts()
    found.record(merge_trees(1, [("ngram", builder.build())]), [0], 1)
    assert repr(found) == "DraftCounts(2 drafted, 1 tried, 0 accepted)"
    panel = Figure().subplots()
    _draw_acceptance(panel, "flexspec depth=8,branch=4,budget=32", DraftReport.of(found))
    assert list(panel.get_xticks()) == [1] and len(panel.patches) == 1
    assert [list(line.get_xdata()) for line in panel.get_lines()] == [[1]]
    assert panel.get_title().count("\n") == 1


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"chart\.pdf' is not allowed: give a file that ends in \.png or \.svg"):
        check_plot(tmp_path / "chart.pdf", ["flexspec"])
    with pytest.raises(UsageError, match="nothing to compare with: give --ssm"):
        check_plot(tmp_path / "chart.png", [])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'flexspec\[plot\]'"):
        check_plot(tmp_path / "chart.png", ["flexspec"])
