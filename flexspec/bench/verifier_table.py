"""Verifiers compared, in the layout of the paper's Table 3."""

from rich.table import Table
from rich.text import Text

from flexspec.bench.contenders import NAIVE
from flexspec.bench.paper import CITATION, MODELS, NAIVE_TO_MSS, NAIVE_WIDTH, TREE
from flexspec.bench.ratio_text import on_two_lines, value_range
from flexspec.bench.verifier_comparison import ComparisonResult


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
            on_two_lines(row.tokens_per_step, ".2f"),
            "" if row.over_naive is None else on_two_lines(row.over_naive, ".2f"),
            "" if row.ratio is None else on_two_lines(row.ratio, ".2f"),
            f"{row.drafted_per_step:.2f}",
            on_two_lines(row.acceptance, ".1%"),
        )
    _add_paper_rows(table)
    return table


def _add_paper_rows(table: Table) -> None:
    naive, mss = zip(*NAIVE_TO_MSS.values(), strict=True)
    gains = [with_mss / without for without, with_mss in NAIVE_TO_MSS.values()]
    table.add_section()
    table.add_row(Text(CITATION, style="bold"))
    table.add_row(NAIVE, value_range(naive))
    table.add_row("mss", value_range(mss), value_range(gains))
