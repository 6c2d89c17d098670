"""Ratios and their intervals in words."""

from collections.abc import Sequence

from flexspec.bench.statistics import Ratio

_ONE_PROMPT = "one prompt"


def interval(ratio: Ratio) -> str:
    """Its ends to three places."""
    return _ONE_PROMPT if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"


def on_two_lines(ratio: Ratio, form: str) -> str:
    """The value in this format, and below it the interval."""
    return f"{ratio.value:{form}}\n{_short_interval(ratio, form)}"


def with_interval(ratio: Ratio) -> str:
    """The value, and below it the interval in brackets."""
    return f"{ratio.value:.2f}\n({_short_interval(ratio, '.2f')})"


def value_range(values: Sequence[float], form: str = ".2f") -> str:
    """From the least of the values to the greatest."""
    return f"{min(values):{form}}".removesuffix("%") + "\N{EN DASH}" + f"{max(values):{form}}"


def _short_interval(ratio: Ratio, form: str) -> str:
    return _ONE_PROMPT if ratio.low is None or ratio.high is None else value_range([ratio.low, ratio.high], form)
