"""A chart of what can be had: time per token against throughput of a device."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError

_SUFFIXES = (".png", ".svg")
_EXTRA = "plot"


def check_plot(path: Path) -> None:
    """Refuse a chart that could not be drawn later.

    Raises:
        UsageError: if the file's name does not end in .png or .svg, or matplotlib is not installed.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {str(path)!r} is not allowed: give a file that ends in {' or '.join(_SUFFIXES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError(f"--plot needs matplotlib, which is not installed: pip install 'flexspec[{_EXTRA}]'") from None


def plot_front(report: Mapping[str, Any], path: Path) -> None:
    """Draw the Pareto front of a report, with the choice and what it is compared with.

    Raises:
        UsageError: if the file can't be written.
    """
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    counts = sorted({_devices(one) for one in report["pareto"]})
    for number, devices in enumerate(counts):
        points = sorted(_point(one) for one in report["pareto"] if _devices(one) == devices)
        label = f"{devices} device{'s' if devices > 1 else ''}"
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=f"C{number % 10}", label=label)
    choice = {**report["choice"], **report["predicted"]}
    marks = (("choice", choice, "*"), ("without speculation", report.get("incremental"), "s"), ("one device", report.get("baseline"), "D"))
    for label, one, marker in marks:
        if one:
            axes.scatter(*_point(one), marker=marker, s=90, facecolors="none", edgecolors="black", label=label, zorder=3)
    axes.set(xlabel="ms per token of a request", ylabel="tokens/s per device", title="Predicted: nothing else is better at once")
    axes.grid(color="0.9")
    axes.legend(fontsize="small", loc="lower right")  # looking for the best place takes long, and on a busy machine warns
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"--plot {str(path)!r} can't be written ({error.strerror}): give another file") from None


def _devices(one: Mapping[str, Any]) -> int:
    return int(one.get("devices", one["dp"] * one["pp"] * one["tp"]))


def _point(one: Mapping[str, Any]) -> tuple[float, float]:
    return float(one["ms_per_token"]), float(one["tokens_per_s"]) / _devices(one)
