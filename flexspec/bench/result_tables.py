"""All tables of a benchmark's result, in their order."""

from collections.abc import Iterator

from rich.table import Table

from flexspec.bench.hit_rates import hit_rate_table
from flexspec.bench.result import BenchResult
from flexspec.bench.speedups import speedups_over_plain
from flexspec.bench.tables import ratio_table, speed_table, speedup_table, step_time_table, tree_labels
from flexspec.bench.tokens_per_step import tokens_per_step_table


def result_tables(result: BenchResult, *, with_step_times: bool) -> Iterator[Table]:
    """Speeds, their ratios, acceptance, and, if asked for, where the time of a decode step goes."""
    labels, temperature = tree_labels(result.rows), result.settings["temperature"]
    yield speed_table(result.rows, labels)
    if result.ratios:
        yield ratio_table(result.ratios, labels)
    if result.ratios_by_category:
        yield speedup_table(speedups_over_plain(result), labels)
    if any(row.drafters for row in result.rows):
        yield tokens_per_step_table(result.rows, labels, temperature=temperature)
    if result.drafts:
        yield hit_rate_table(result.drafts, labels, temperature=temperature)
    if with_step_times:
        yield step_time_table(result.step_times, labels)
