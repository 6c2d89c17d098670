"""A benchmark's result as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.runtime.stats import PHASES, Profile
from flexspec.tree_shape import parse_tree


def speed_table(rows: Sequence[Row]) -> Table:
    """Speed by category and system."""
    drafting = {
        row.system: f"{row.system} drafts with {' and '.join(row.drafters)}, tree {parse_tree(row.tree)}" for row in rows if row.drafters
    }
    table = Table(title="Decoding speed, prefill told apart", caption="; ".join(drafting.values()) or None, caption_justify="left")
    table.add_column("category", no_wrap=True)
    table.add_column("system", no_wrap=True)
    for name in ("tokens/s", "a step", "prefill\nms", "n", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    before = rows[0].category if rows else ""
    for row in rows:
        if row.category != before:
            table.add_section()
        table.add_row(
            row.category if row.category != before or row is rows[0] else "",
            row.system,
            f"{row.tokens_per_s:.1f}",
            f"{row.tokens_per_step:.2f}",
            f"{1e3 * row.prefill_s:.0f}",
            str(row.prompts),
            str(row.new_tokens),
        )
        before = row.category
    return table


def ratio_table(ratios: Mapping[str, Ratio]) -> Table:
    """Paired ratios with their intervals."""
    table = Table(title="Decoding speed, paired by prompt")
    table.add_column("ratio")
    table.add_column("geometric mean", justify="right")
    table.add_column("95% interval", justify="right")
    for name, ratio in ratios.items():
        interval = "none, one prompt" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
        table.add_row(name, f"{ratio.value:.3f}", interval)
    return table


def profile_table(profiles: Mapping[str, Profile], *, drafters_run_models: bool) -> Table:
    """Milliseconds of a decode step by phase, and the share of all that is not a model's pass.

    Args:
        profiles: by system.
        drafters_run_models: whether drafting counts as model passes.
    """
    table = Table(title="A decode step, milliseconds")
    table.add_column("phase")
    for name in profiles:
        table.add_column(name, justify="right")
    for phase in PHASES:
        table.add_row(phase, *(f"{profile.per_step_ms()[phase]:.3f}" for profile in profiles.values()))
    table.add_section()
    table.add_row("whole step", *(f"{sum(profile.per_step_ms().values()):.3f}" for profile in profiles.values()))
    shares = (profile.bookkeeping_share(draft_is_bookkeeping=not drafters_run_models) for profile in profiles.values())
    table.add_row("bookkeeping", *(f"{share:.1%}" for share in shares))
    table.add_row("steps", *(str(profile.steps) for profile in profiles.values()))
    return table
