"""A chart of the speed-up by category and of acceptance by depth."""

import importlib
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.report import ALL
from flexspec.bench.result import BenchResult
from flexspec.bench.speedups import speedups_over_plain
from flexspec.bench.statistics import Ratio
from flexspec.errors import UsageError
from flexspec.runtime.draft_counts import DraftCount

_SUFFIXES = (".png", ".svg")
_MARKERS = "osD^vPX*"
_EXTRA = "plot"
_PANELS_A_ROW = 4
_PANEL_WIDTH = 5.0  # inches
_ROW_HEIGHT = 4.2  # inches


def check_plot(path: Path, systems: Collection[str]) -> None:
    """Refuse a chart that could not be drawn later, before any work is done for it.

    Args:
        path: where it will be.
        systems: all but plain decoding, which they are compared with.

    Raises:
        UsageError: if the file's name does not end in .png or .svg, there are no systems, or matplotlib is not installed.
    """
    if not systems:
        raise UsageError(
            "--plot shows speed-ups and the acceptance of drafters, and there is nothing to compare with: give --ssm, for example --ssm "
            "ngram, or --against"
        )
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {str(path)!r} is not allowed: give a file that ends in {' or '.join(_SUFFIXES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError(f"--plot needs matplotlib, which is not installed: pip install 'flexspec[{_EXTRA}]'") from None


class _Acceptance(NamedTuple):
    """What one lower panel shows."""

    title: str
    drafts: DraftReport


def plot_result(results: Sequence[BenchResult], path: Path) -> None:
    """Draw speed-ups over plain by category, and below them, by system, the share of the steps at each depth that went on.

    A panel above has a bar with its paired interval for every system and category; there is one for each batch size. One below
    has bars for all drafters and a line for each; each batch size begins another row of them.

    Args:
        results: of one benchmark, one a batch size.
        path: as `check_plot` takes it.

    Raises:
        UsageError: if the file can't be written.
    """
    figures: Any = importlib.import_module("matplotlib.figure")
    rows = [row for result in results for row in _acceptance_rows(result, results)]
    columns = max((len(row) for row in rows), default=1)
    speedups = [speedups_over_plain(result) for result in results]
    widths = [_width(one) for one in speedups]
    size = (1.5 + max(columns * _PANEL_WIDTH, sum(widths)), _ROW_HEIGHT * (1 + len(rows)))
    figure = figures.Figure(figsize=size, layout="constrained")
    above, *below = figure.subfigures(1 + len(rows), 1, squeeze=False)[:, 0]
    systems = list(dict.fromkeys(system for result in results for system in result.systems))
    panels = above.subplots(1, len(results), squeeze=False, sharey=True, width_ratios=widths)[0]
    for panel, result, one in zip(panels, results, speedups, strict=True):
        _draw_speedups(panel, one, systems)
        panel.set_title(f"decode speed over plain, with 95% intervals{_at_a_time(result, results)}")
    panels[0].set_ylabel("speed-up")
    for part, row in zip(below, rows, strict=True):
        panels = part.subplots(1, columns, squeeze=False, sharey=True)[0]
        for panel, acceptance in zip(panels, row, strict=False):
            _draw_acceptance(panel, acceptance.title, acceptance.drafts)
        for panel in panels[len(row) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("share of the steps that got there")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"--plot {str(path)!r} can't be written ({error.strerror}): give another file") from None


def _acceptance_rows(result: BenchResult, results: Sequence[BenchResult]) -> list[Sequence[_Acceptance]]:
    panels = [_Acceptance(f"{system}{_at_a_time(result, results)}", reports[ALL]) for system, reports in result.drafts.items()]
    return [panels[start : start + _PANELS_A_ROW] for start in range(0, len(panels), _PANELS_A_ROW)]


def _at_a_time(result: BenchResult, results: Sequence[BenchResult]) -> str:
    return f", batch {result.settings['batch']}" if len(results) > 1 else ""


def _width(speedups: Mapping[str, Mapping[str, Ratio]]) -> float:
    """Inches that the bars need to be told apart."""
    return max(_PANEL_WIDTH, sum(max(1.1, 0.22 * (len(group) + 1)) for group in speedups.values()))


def _draw_speedups(panel: Any, speedups: Mapping[str, Mapping[str, Ratio]], systems: Sequence[str]) -> None:
    """Groups of bars, a category each; a system has the same colour in all panels."""
    shown = [system for system in systems if any(system in group for group in speedups.values())]
    thickness = 0.8 / max(len(shown), 1)
    for number, system in enumerate(shown):
        places = [place for place, group in enumerate(speedups.values()) if system in group]
        ratios = [group[system] for group in speedups.values() if system in group]
        panel.bar(
            [place + (number - (len(shown) - 1) / 2) * thickness for place in places],
            [ratio.value for ratio in ratios],
            thickness,
            yerr=list(zip(*(_error(ratio) for ratio in ratios), strict=True)),
            capsize=2,
            error_kw={"linewidth": 0.8},
            color=f"C{systems.index(system)}",
            label=_literal(system),
        )
    panel.axhline(1.0, color="0.4", linewidth=0.8)
    panel.set_xticks(range(len(speedups)), [_literal(category) for category in speedups])
    if shown:
        panel.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=min(len(shown), 6))


def _error(ratio: Ratio) -> tuple[float, float]:
    """How far the interval reaches down and up; rounding may leave the value just outside of it."""
    if ratio.low is None or ratio.high is None:
        return 0.0, 0.0
    return max(ratio.value - ratio.low, 0.0), max(ratio.high - ratio.value, 0.0)


def _draw_acceptance(panel: Any, title: str, drafts: DraftReport) -> None:
    depths = _reached(drafts.everything.by_depth)
    bars = panel.bar(list(depths), _shares(depths), color="0.85", label="all drafters")
    panel.bar_label(bars, labels=[f"of {count.steps}" for count in depths.values()], padding=3, color="0.4", fontsize="small")
    for marker, (drafter, view) in zip(cycle(_MARKERS), drafts.drafters.items(), strict=False):
        own = _reached(view.by_depth)
        panel.plot(list(own), _shares(own), marker=marker, label=_literal(drafter))
    panel.set(title=f"{_literal(title)}:\na drafted token was accepted", xlabel="depth in the tree", ylim=(0, 1.08))
    panel.set_xticks(list(depths))
    panel.legend(loc="upper right")  # looking for the best place takes long, and on a busy machine warns


def _literal(name: str) -> str:
    """`name` without formulas in it."""
    return name.replace("$", r"\$")


def _reached(depths: Mapping[int, DraftCount]) -> dict[int, DraftCount]:
    """Those that some step got to: of the others there is no share. None of these lies below another one, so lines have no gaps."""
    return {depth: count for depth, count in depths.items() if count.steps}


def _shares(depths: Mapping[int, DraftCount]) -> list[float]:
    return [count.accepted_per_step for count in depths.values()]
