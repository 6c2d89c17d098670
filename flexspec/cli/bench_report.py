"""A benchmark's result on the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from flexspec.bench.comparison import RunComparison
from flexspec.bench.comparison_table import comparison_table
from flexspec.bench.hit_rates import hit_rate_table
from flexspec.bench.notes import notes_of, warnings_of
from flexspec.bench.result import BenchResult
from flexspec.bench.tables import category_table, profile_table, ratio_table, speed_table, tokens_per_step_table, tree_labels

_WIDE = 1000
"""Characters of a line that nobody looks at on a terminal, so that files and pipes get whole tables."""


def show_results(results: Sequence[BenchResult], *, profile: bool) -> None:
    """Tables of every batch size, what was measured on what, notes, and warnings on stderr.

    Args:
        results: one a batch size; at least one.
        profile: whether to show where the time of a decode step goes.
    """
    console = _console()
    for result in results:
        for table in _tables(result, profile=profile):
            if len(results) > 1:
                table.title = f"{table.title}, batch {result.settings['batch']}"
            console.print(table)
    settings, machine = results[0].settings, results[0].machine
    threads = "thread" if machine["threads"] == 1 else "threads"
    versions = {name: version for result in results for name, version in result.versions.items()}
    console.print(
        f"{settings['model']} in {settings['dtype']} on {machine['cpu']}, {machine['threads']} {threads}; target {machine['target']}; "
        f"row invariance {machine['row_invariance']}; {', '.join(f'{name} {version}' for name, version in versions.items())}",
        markup=False,
    )
    for note in notes_of(results):
        console.print(note, markup=False)
    warn(warnings_of(results))


def show_comparison(comparison: RunComparison) -> None:
    """Two benchmarks beside each other, and what else they differ in."""
    console = _console()
    console.print(comparison_table(comparison))
    for note in comparison.notes:
        console.print(note, markup=False)


def warn(warnings: Sequence[str]) -> None:
    """Tell warnings on stderr, each on a line."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in warnings:
        console.print(f"WARNING: {warning}", style="bold red", markup=False)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


def _tables(result: BenchResult, *, profile: bool) -> Iterator[Table]:
    labels, temperature = tree_labels(result.rows), result.settings["temperature"]
    yield speed_table(result.rows, labels)
    if result.ratios:
        yield ratio_table(result.ratios, labels)
    if result.ratios_by_category:
        yield category_table(result.ratios_by_category, labels)
    if result.drafts:
        yield tokens_per_step_table(result.rows, labels, temperature=temperature)
        yield hit_rate_table(result.drafts, labels, temperature=temperature)
    if profile:
        yield profile_table(result.profiles, labels, drafters_run_models=bool(result.llm.plan.ssms))
