"""A benchmark's result as tables for the terminal."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from rich.table import Table

from flexspec.bench.report import SPECULATIVE, Row
from flexspec.bench.statistics import Ratio
from flexspec.bench.verifier_comparison import ComparisonResult
from flexspec.runtime.stats import PHASES, Profile
from flexspec.tree_shape import parse_tree

_LONG_NAME = 24
"""Characters of a system's name that tables have room for in 80 columns."""


def tree_labels(rows: Sequence[Row]) -> dict[str, str]:
    """A short label for every system, which is its name unless that tells too much of its tree; the speed table explains them."""
    names = dict.fromkeys(row.system for row in rows)
    letters = iter(ascii_uppercase)
    return {name: f"{SPECULATIVE} {next(letters)}" if len(name) > _LONG_NAME else name for name in names}


def _ratio_label(ratio: str, labels: Mapping[str, str]) -> str:
    return "/".join(labels.get(name, name) for name in ratio.split("/"))


def speed_table(rows: Sequence[Row], labels: Mapping[str, str]) -> Table:
    """Speed by category and system, with what each system drafts with."""
    drafting = {
        row.system: f"{labels[row.system]} drafts with {' and '.join(row.drafters)}, tree {parse_tree(row.tree)}"
        for row in rows
        if row.drafters
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
            labels[row.system],
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
        table.add_row(_ratio_label(name, labels), f"{ratio.value:.3f}", _interval(ratio))
    return table


def category_table(ratios: Mapping[str, Mapping[str, Ratio]], labels: Mapping[str, str]) -> Table:
    """Paired ratios by category, those of the main system to any other."""
    names = list(dict.fromkeys(name for group in ratios.values() for name in group if name.startswith(f"{SPECULATIVE}/")))
    table = Table(title="The same by category")
    for name in ("category", "ratio"):
        table.add_column(name, no_wrap=True)
    table.add_column("geometric mean", justify="right")
    table.add_column("95% interval", justify="right")
    for category, group in ratios.items():
        table.add_section()
        for place, name in enumerate(name for name in names if name in group):
            table.add_row(category if place == 0 else "", _ratio_label(name, labels), f"{group[name].value:.3f}", _interval(group[name]))
    return table


def _interval(ratio: Ratio, form: str = ".3f") -> str:
    return "one prompt" if ratio.low is None or ratio.high is None else f"{ratio.low:{form}} to {ratio.high:{form}}"


def verifier_table(result: ComparisonResult) -> Table:
    """Acceptance by temperature and verifier."""
    reference = "learned \N{GREEK SMALL LETTER ALPHA}" if any(row.learned_alphas for row in result.rows) else "reference"
    table = Table(
        title=f"Verifiers on trees {result.tree}, {result.prompts} prompts, with 95% intervals over prompts",
        caption=f"{reference} / this: tokens a step of {result.reference} over those of the row, paired by prompt, geometric mean; "
        "drafted: nodes verified, duplicates folded",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("verifier")
    for name in ("tokens\na step", "drafted\na step", "accepted\nof drafted", f"{reference}\n/ this"):
        table.add_column(name, justify="right", no_wrap=True)
    before: float | None = None
    for row in result.rows:
        if row.temperature != before:
            table.add_section()
            table.add_row(f"temperature {row.temperature:g}")
        before = row.temperature
        learned = ", ".join(f"{alpha:.2g}" for alpha in row.learned_alphas.values())
        table.add_row(
            f"{row.contender}: {learned}".replace(", ", ",\n", 1) if learned else row.contender,
            _on_two_lines(row.tokens_per_step, ".2f"),
            f"{row.drafted_per_step:.2f}",
            _on_two_lines(row.acceptance, ".1%"),
            "" if row.ratio is None else _on_two_lines(row.ratio, ".2f"),
        )
    return table


def _on_two_lines(ratio: Ratio, form: str) -> str:
    return f"{ratio.value:{form}}\n{_interval(ratio, form)}"


def profile_table(profiles: Mapping[str, Profile], labels: Mapping[str, str], *, drafters_run_models: bool) -> Table:
    """Milliseconds of a decode step by phase, and the share of all that is not a model's pass.

    Args:
        profiles: by system.
        labels: of the systems.
        drafters_run_models: whether drafting counts as model passes.
    """
    table = Table(title="A decode step, milliseconds")
    table.add_column("phase")
    for name in profiles:
        table.add_column(labels[name], justify="right")
    for phase in PHASES:
        table.add_row(phase, *(f"{profile.per_step_ms()[phase]:.3f}" for profile in profiles.values()))
    table.add_section()
    table.add_row("whole step", *(f"{sum(profile.per_step_ms().values()):.3f}" for profile in profiles.values()))
    shares = (profile.bookkeeping_share(draft_is_bookkeeping=not drafters_run_models) for profile in profiles.values())
    table.add_row("bookkeeping", *(f"{share:.1%}" for share in shares))
    table.add_row("steps", *(str(profile.steps) for profile in profiles.values()))
    return table
