"""Paired ratios by the systems they compare, and read as speed-ups over plain decoding."""

from collections.abc import Collection, Mapping

from flexspec.bench.report import ALL, PLAIN
from flexspec.bench.result import BenchResult
from flexspec.bench.statistics import Ratio


def compared(ratio: str, systems: Collection[str]) -> tuple[str, str]:
    """The two systems of a ratio's name; names of systems may hold slashes too, as paths of draft models do."""
    for place, letter in enumerate(ratio):
        if letter == "/" and ratio[:place] in systems and ratio[place + 1 :] in systems:
            return ratio[:place], ratio[place + 1 :]
    raise AssertionError(f"{ratio!r} compares none of {sorted(systems)}")


def speedups_over_plain(result: BenchResult) -> dict[str, dict[str, Ratio]]:
    """By category, `all` first, and by system: decode speed over that of flexspec's plain decoding, paired by prompt.

    Systems that share no prompt with a decode speed are missing.
    """
    systems = result.systems
    return {category: _over_plain(ratios, systems) for category, ratios in {ALL: result.ratios, **result.ratios_by_category}.items()}


def _over_plain(ratios: Mapping[str, Ratio], systems: Collection[str]) -> dict[str, Ratio]:
    found: dict[str, Ratio] = {}
    for name, ratio in ratios.items():
        above, below = compared(name, systems)
        if below == PLAIN:
            found[above] = ratio
        elif above == PLAIN:
            found[below] = _inverse(ratio)
    return {system: found[system] for system in systems if system in found}


def _inverse(ratio: Ratio) -> Ratio:
    if ratio.low is None or ratio.high is None:
        return Ratio(value=1 / ratio.value, low=None, high=None)
    return Ratio(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
