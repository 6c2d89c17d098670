"""Tables of the page."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from flexspec.bench.markdown_table import markdown_table


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1, bold: Sequence[bool] = ()) -> str:
    """Markdown.

    Args:
        header: of the columns.
        rows: of cells.
        words: columns of text, from the left; figures stand to the right.
        bold: rows that stand out.
    """
    made = Table()
    for place, name in enumerate(header):
        made.add_column(name, justify="left" if place < words else "right")
    for place, row in enumerate(rows):
        is_bold = place < len(bold) and bold[place]
        made.add_row(*(Text(cell, style="bold") if is_bold and cell else cell for cell in row))
    return markdown_table(made)
