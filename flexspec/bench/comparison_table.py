"""Two benchmarks beside each other, as a table for the terminal."""

from rich.table import Table
from rich.text import Text

from flexspec.bench.comparison import RunComparison
from flexspec.bench.ratio_text import interval


def comparison_table(comparison: RunComparison) -> Table:
    """Speeds of both benchmarks, and how their speed-ups over plain decoding compare."""
    here, there = comparison.names
    table = Table(
        title=Text(f"{here} beside {there}, on the prompts of both"),
        caption="ratio: the speed-up over plain decoding here over the one there, paired by prompt, geometric mean with 95% interval",
        caption_justify="left",
    )
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("system", overflow="fold")
    for name in ("tokens/s\nhere", "tokens/s\nthere", "a step\nhere", "a step\nthere", "speed-up\nhere", "speed-up\nthere", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    before: int | None = None
    for row in comparison.systems:
        if before is not None and row.batch != before:
            table.add_section()
        table.add_row(
            str(row.batch) if row.batch != before else "",
            Text(row.system),
            *(f"{speed:.1f}" for speed in row.tokens_per_s),
            *(f"{tokens:.2f}" for tokens in row.tokens_per_step),
            *(("", "") if row.speedup is None else (f"{speedup:.2f}" for speedup in row.speedup)),
            "" if row.ratio is None else f"{row.ratio.value:.3f}\n{interval(row.ratio)}",
            str(row.prompts),
        )
        before = row.batch
    return table
