"""Tables of the terminal as GitHub-flavoured Markdown."""

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_SPECIAL = re.compile(r"([\\|*`<\[])")
"""What would end a cell or be taken for formatting."""


def markdown_table(table: Table) -> str:
    """The columns of `table` lined up, its title left out, with its caption as a paragraph below.

    Args:
        table: of text; bold cells stay bold.
    """
    columns = [[_cell(column.header), *(_cell(cell) for cell in column.cells)] for column in table.columns]
    widths = [max(3, *(cell_len(cell) for cell in cells)) for cells in columns]
    to_the_right = [column.justify == "right" for column in table.columns]
    rules = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, to_the_right, strict=True)]
    header, *rows = zip(*columns, strict=True)
    lines = [_line(cells, widths, to_the_right) for cells in (header, rules, *rows)]
    if table.caption is not None:
        lines += ["", escape(str(table.caption))]
    return "\n".join(lines)


def escape(text: str) -> str:
    """`text` on one line, to be read as it stands."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _cell(content: RenderableType) -> str:
    if isinstance(content, Text):
        text = escape(content.plain)
        return f"**{text}**" if text and content.style == "bold" else text
    assert isinstance(content, str), f"a cell holds {content!r}"
    return escape(content)


def _line(cells: Sequence[str], widths: Sequence[int], to_the_right: Sequence[bool]) -> str:
    parts = []
    for cell, width, right in zip(cells, widths, to_the_right, strict=True):
        blanks = " " * (width - cell_len(cell))
        parts.append(blanks + cell if right else cell + blanks)
    return f"| {' | '.join(parts)} |"
