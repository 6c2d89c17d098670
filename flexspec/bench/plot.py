"""A chart of acceptance by depth."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError
from flexspec.runtime.draft_counts import DraftCount, DraftCounts

_SUFFIXES = (".png", ".svg")
_MARKERS = "osD^vPX*"
_EXTRA = "plot"


def check_plot(path: Path, drafters: Sequence[Any]) -> None:
    """Refuse a chart that could not be drawn later, before any work is done for it.

    Args:
        path: where it will be.
        drafters: whose acceptance it will show.

    Raises:
        UsageError: if the file's name does not end in .png or .svg, there are no drafters, or matplotlib is not installed.
    """
    if not drafters:
        raise UsageError("--plot shows the acceptance of drafters, and there are none: give --ssm, for example --ssm ngram")
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {str(path)!r} is not allowed: give a file that ends in {' or '.join(_SUFFIXES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError(f"--plot needs matplotlib, which is not installed: pip install 'flexspec[{_EXTRA}]'") from None


def plot_acceptance(drafts: Mapping[str, DraftCounts], path: Path) -> None:
    """Draw, for every system, the share of the steps at each depth that went on: bars for all drafters, a line for each.

    Args:
        drafts: by name of the system; at least one.
        path: as `check_plot` takes it.
    """
    figures: Any = importlib.import_module("matplotlib.figure")
    # Widths of a figure are in inches.
    figure = figures.Figure(figsize=(1.5 + 5.0 * len(drafts), 4.2), layout="constrained")
    panels = figure.subplots(1, len(drafts), squeeze=False, sharey=True)[0]
    for panel, (system, counts) in zip(panels, drafts.items(), strict=True):
        _draw(panel, system, counts)
    panels[0].set_ylabel("share of the steps that got there")
    figure.savefig(path, dpi=150)


def _draw(panel: Any, system: str, counts: DraftCounts) -> None:
    depths = _reached(counts.by_depth())
    bars = panel.bar(list(depths), _shares(depths), color="0.85", label="all drafters")
    panel.bar_label(bars, labels=[f"of {count.steps}" for count in depths.values()], padding=3, color="0.4", fontsize="small")
    for marker, drafter in zip(_MARKERS * len(counts.by_drafter()), counts.by_drafter(), strict=False):
        own = _reached(counts.by_depth(drafter))
        panel.plot(list(own), _shares(own), marker=marker, label=drafter)
    panel.set(title=f"{system}:\na drafted token was accepted", xlabel="depth in the tree", ylim=(0, 1.08))
    panel.set_xticks(list(depths))
    panel.legend()


def _reached(depths: Mapping[int, DraftCount]) -> dict[int, DraftCount]:
    """Those that some step got to: of the others there is no share. None of these lies below another one, so lines have no gaps."""
    return {depth: count for depth, count in depths.items() if count.steps}


def _shares(depths: Mapping[int, DraftCount]) -> list[float]:
    return [count.accepted_per_step for count in depths.values()]
