"""A benchmark's result as tables for the terminal."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from rich.table import Table
from rich.text import Text

from flexspec.bench.ratio_text import interval, with_interval
from flexspec.bench.report import SPECULATIVE, Row
from flexspec.bench.speedups import compared
from flexspec.bench.statistics import Ratio
from flexspec.bench.step_times import StepTimes
from flexspec.runtime.stats import PHASES
from flexspec.tree_shape import parse_tree

_LONG_NAME = 24
"""Characters of a system's name that tables have room for in 80 columns."""


def tree_labels(rows: Sequence[Row]) -> dict[str, str]:
    """A short label for every system, which is its name unless that tells too much of its tree; the speed table explains them."""
    names = dict.fromkeys(row.system for row in rows)
    letters = iter(ascii_uppercase)
    return {name: f"{SPECULATIVE} {next(letters)}" if len(name) > _LONG_NAME else name for name in names}


def _ratio_label(ratio: str, labels: Mapping[str, str]) -> str:
    return "/".join(labels[name] for name in compared(ratio, labels))


def speed_table(rows: Sequence[Row], labels: Mapping[str, str]) -> Table:
    """Speed by category and system, with what each system drafts with."""
    drafting = {
        row.system: f"{labels[row.system]} drafts with {' and '.join(row.drafters)}, tree {parse_tree(row.tree)}"
        for row in rows
        if row.drafters
    }
    caption = Text("; ".join(drafting.values())) if drafting else None
    table = Table(title="Decoding speed, prefill told apart", caption=caption, caption_justify="left")
    table.add_column("category", no_wrap=True)
    table.add_column("system", no_wrap=True)
    for name in ("tokens/s", "a step", "prefill\nms", "n", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    before = rows[0].category if rows else ""
    for row in rows:
        if row.category != before:
            table.add_section()
        table.add_row(
            Text(row.category if row.category != before or row is rows[0] else ""),
            Text(labels[row.system]),
            f"{row.tokens_per_s:.1f}",
            f"{row.tokens_per_step:.2f}",
            f"{1e3 * row.prefill_s:.0f}",
            str(row.prompts),
            str(row.new_tokens),
        )
        before = row.category
    return table


def ratio_table(ratios: Mapping[str, Ratio], labels: Mapping[str, str]) -> Table:
    """Paired ratios with their intervals."""
    table = Table(title="Decoding speed, paired by prompt")
    table.add_column("ratio")
    table.add_column("geometric mean", justify="right")
    table.add_column("95% interval", justify="right")
    for name, ratio in ratios.items():
        table.add_row(Text(_ratio_label(name, labels)), f"{ratio.value:.3f}", interval(ratio))
    return table


def speedup_table(speedups: Mapping[str, Mapping[str, Ratio]], labels: Mapping[str, str]) -> Table:
    """Speed-ups over plain decoding by category and system, as `speedups_over_plain` gives them."""
    systems = list(dict.fromkeys(system for group in speedups.values() for system in group))
    table = Table(title="Speed-up over plain, paired by prompt, with 95% intervals")
    table.add_column("prompts", overflow="fold")
    for system in systems:
        table.add_column(Text(labels[system]), justify="right", overflow="fold")
    for category, group in speedups.items():
        table.add_row(Text(category), *(with_interval(group[system]) if system in group else "" for system in systems))
    return table


def step_time_table(step_times: Mapping[str, StepTimes], labels: Mapping[str, str]) -> Table:
    """Milliseconds of a decode step by phase, and the share of all that is not a model's pass.

    Args:
        step_times: by system.
        labels: of the systems.
    """
    table = Table(
        title="A decode step, milliseconds",
        caption="bookkeeping: all but passes of the large model, and but drafting where drafters run models",
        caption_justify="left",
    )
    table.add_column("phase")
    for name in step_times:
        table.add_column(Text(labels[name]), justify="right", overflow="fold")
    for phase in PHASES:
        table.add_row(phase, *(f"{times.ms[phase]:.3f}" for times in step_times.values()))
    table.add_section()
    table.add_row("whole step", *(f"{sum(times.ms.values()):.3f}" for times in step_times.values()))
    table.add_row("bookkeeping", *(f"{times.bookkeeping:.1%}" for times in step_times.values()))
    table.add_row("steps", *(str(times.steps) for times in step_times.values()))
    return table
