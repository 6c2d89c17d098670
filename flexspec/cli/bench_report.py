"""A benchmark's result on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flexspec.bench.comparison import RunComparison
from flexspec.bench.comparison_table import comparison_table
from flexspec.bench.notes import notes_of, warnings_of
from flexspec.bench.result import BenchResult, all_versions
from flexspec.bench.result_tables import result_tables

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
        for table in result_tables(result, with_step_times=profile):
            if len(results) > 1:
                table.title = f"{table.title}, batch {result.settings['batch']}"
            _show_table(console, table)
    settings, machine = results[0].settings, results[0].machine
    threads = "thread" if machine["threads"] == 1 else "threads"
    console.print(
        f"{settings['model']} in {settings['dtype']} on {machine['cpu']}, {machine['threads']} {threads}; target {machine['target']}; "
        f"row invariance {machine['row_invariance']}; {', '.join(f'{name} {version}' for name, version in all_versions(results).items())}",
        markup=False,
    )
    for note in notes_of(results):
        console.print(note, markup=False)
    warn(warnings_of(results))


def show_comparison(comparison: RunComparison) -> None:
    """Two benchmarks beside each other, and what else they differ in."""
    console = _console()
    _show_table(console, comparison_table(comparison))
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


def _show_table(console: Console, table: Table) -> None:
    """The table, and its caption in lines as wide as the terminal is: under a narrow table it would be in many short ones."""
    caption, table.caption = table.caption, None
    console.print(table)
    if caption is not None:
        console.print(Text(str(caption), style="dim italic"))
    console.print()
