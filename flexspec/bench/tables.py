"""A benchmark's result as tables for the terminal."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from rich.table import Table
from rich.text import Text

from flexspec.bench.contenders import NAIVE
from flexspec.bench.paper import CITATION, MODELS, NAIVE_TO_MSS, NAIVE_WIDTH, TREE, figures
from flexspec.bench.report import SPECULATIVE, Row
from flexspec.bench.speedups import compared
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
        table.add_row(Text(_ratio_label(name, labels)), f"{ratio.value:.3f}", _interval(ratio))
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
            ratio = group[name]
            table.add_row(Text(category if place == 0 else ""), Text(_ratio_label(name, labels)), f"{ratio.value:.3f}", _interval(ratio))
    return table


def speedup_table(speedups: Mapping[str, Mapping[str, Ratio]], labels: Mapping[str, str]) -> Table:
    """Speed-ups over plain decoding by category and system, as `speedups_over_plain` gives them."""
    systems = list(dict.fromkeys(system for group in speedups.values() for system in group))
    table = Table(title="Speed-up over plain, paired by prompt, with 95% intervals")
    table.add_column("prompts", overflow="fold")
    for system in systems:
        table.add_column(Text(labels[system]), justify="right", overflow="fold")
    for category, group in speedups.items():
        table.add_row(Text(category), *(_with_interval(group[system]) if system in group else "" for system in systems))
    return table


def tokens_per_step_table(
    rows: Sequence[Row], labels: Mapping[str, str] | None = None, *, temperature: float = 0.0, with_paper: bool = False
) -> Table:
    """Tokens per step by category and system, in the layout of the paper's Table 2.

    Args:
        rows: of all systems; those that draft nothing, and so make one token a step, are left out if any other drafts.
        labels: what to call the systems; without them by their names.
        temperature: of the run.
        with_paper: whether the caption tells the paper's figures for greedy or stochastic decoding, whichever the run was.
    """
    systems = list(dict.fromkeys(row.system for row in rows if row.drafters) or dict.fromkeys(row.system for row in rows))
    cells = {(row.category, row.system): f"{row.tokens_per_step:.2f}" for row in rows}
    caption = "new tokens over passes of the large model, the pass that ends prefill included; n: prompts"
    if with_paper:
        caption += f"; {CITATION}, {MODELS}, trees {TREE}: {_paper_tokens_per_step(temperature)}"
    table = Table(
        title=f"Tokens per step, {'stochastic' if temperature > 0 else 'greedy'}",
        caption=caption,
        caption_justify="left",
    )
    table.add_column("prompts", overflow="fold")
    for system in systems:
        table.add_column(Text(labels[system] if labels else system), justify="right", overflow="fold")
    table.add_column("n", justify="right", no_wrap=True)
    for category, prompts in {row.category: row.prompts for row in rows}.items():
        table.add_row(Text(category), *(cells.get((category, system), "") for system in systems), str(prompts))
    return table


def _paper_tokens_per_step(temperature: float) -> str:
    by_width = zip(*(one.tokens_per_step for one in figures(temperature).values()), strict=True)
    return ", ".join(f"{_range(tokens)} with k={k}" for k, tokens in enumerate(by_width, start=1) if k in (1, 5))


def _interval(ratio: Ratio) -> str:
    return "one prompt" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"


def verifier_table(result: ComparisonResult) -> Table:
    """Acceptance by temperature and verifier, in the order of the paper's Table 3, and below it the paper's own figures."""
    reference = "learned \N{GREEK SMALL LETTER ALPHA}" if any(row.learned_alphas for row in result.rows) else "reference"
    table = Table(
        title=f"Verifiers on trees {result.tree}, {result.prompts} prompts, with 95% intervals over prompts",
        caption=f"this / naive: tokens a step of the row over those of {NAIVE}, which draws from the large model and accepts what is among "
        "the drafter's likeliest, paired by prompt, geometric mean; "
        f"{reference} / this: likewise {result.reference} over the row; drafted: nodes verified, duplicates folded; {CITATION}: {MODELS}, "
        f"trees {TREE.replace('k', str(NAIVE_WIDTH))}, range over {len(NAIVE_TO_MSS)} data sets",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("verifier", overflow="fold")
    for name in ("tokens\na step", "this\n/ naive", f"{reference}\n/ this", "drafted\na step", "accepted\nof drafted"):
        table.add_column(name, justify="right", no_wrap=True)
    before: float | None = None
    for row in result.rows:
        if row.temperature != before:
            table.add_section()
            table.add_row(Text(f"temperature {row.temperature:g}", style="bold"))
        before = row.temperature
        learned = ", ".join(f"{alpha:.2g}" for alpha in row.learned_alphas.values())
        table.add_row(
            f"{row.contender}: {learned}".replace(" learned", "\nlearned") if learned else row.contender,
            _on_two_lines(row.tokens_per_step, ".2f"),
            "" if row.over_naive is None else _on_two_lines(row.over_naive, ".2f"),
            "" if row.ratio is None else _on_two_lines(row.ratio, ".2f"),
            f"{row.drafted_per_step:.2f}",
            _on_two_lines(row.acceptance, ".1%"),
        )
    _add_paper_rows(table)
    return table


def _add_paper_rows(table: Table) -> None:
    naive, mss = zip(*NAIVE_TO_MSS.values(), strict=True)
    gains = [with_mss / without for without, with_mss in NAIVE_TO_MSS.values()]
    table.add_section()
    table.add_row(Text(CITATION, style="bold"))
    table.add_row(NAIVE, _range(naive))
    table.add_row("mss", _range(mss), _range(gains))


def _range(values: Sequence[float], form: str = ".2f") -> str:
    return f"{min(values):{form}}".removesuffix("%") + "\N{EN DASH}" + f"{max(values):{form}}"


def _on_two_lines(ratio: Ratio, form: str) -> str:
    return f"{ratio.value:{form}}\n{_short_interval(ratio, form)}"


def _with_interval(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}\n({_short_interval(ratio, '.2f')})"


def _short_interval(ratio: Ratio, form: str) -> str:
    return "one prompt" if ratio.low is None or ratio.high is None else _range([ratio.low, ratio.high], form)


def profile_table(profiles: Mapping[str, Profile], labels: Mapping[str, str], *, drafters_run_models: bool) -> Table:
    """Milliseconds of a decode step by phase, and the share of all that is not a model's pass.

    Args:
        profiles: by system.
        labels: of the systems.
        drafters_run_models: whether drafting counts as model passes.
    """
    passes = "passes of the large model, and drafting" if drafters_run_models else "passes of the large model"
    table = Table(title="A decode step, milliseconds", caption=f"bookkeeping: all but {passes}", caption_justify="left")
    table.add_column("phase")
    for name in profiles:
        table.add_column(Text(labels[name]), justify="right", overflow="fold")
    for phase in PHASES:
        table.add_row(phase, *(f"{profile.per_step_ms()[phase]:.3f}" for profile in profiles.values()))
    table.add_section()
    table.add_row("whole step", *(f"{sum(profile.per_step_ms().values()):.3f}" for profile in profiles.values()))
    shares = (profile.bookkeeping_share(draft_is_bookkeeping=not drafters_run_models) for profile in profiles.values())
    table.add_row("bookkeeping", *(f"{share:.1%}" for share in shares))
    table.add_row("steps", *(str(profile.steps) for profile in profiles.values()))
    return table
