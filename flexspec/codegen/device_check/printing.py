"""Tables that are printed row by row, as the rows come."""

from collections.abc import Callable

from flexspec.codegen.device_check.part import Row

_NARROWEST = 7
_GAP = "  "


class RowPrinter:
    """Prints rows in columns, which get wider with what comes in them.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._widths: dict[str, int] = {}

    def row(self, row: Row) -> None:
        """Print a row, below the names of its columns if they are new."""
        cells = {name: _text(value) for name, value in row.items()}
        is_new = list(cells) != list(self._widths)
        known = dict.fromkeys(cells, _NARROWEST) if is_new else self._widths
        self._widths = {name: max(known[name], len(name), len(cell)) for name, cell in cells.items()}
        if is_new:
            self._line({name: name for name in cells})
        self._line(cells)

    def _line(self, cells: dict[str, str]) -> None:
        self._say(_GAP.join(cell.ljust(self._widths[name]) for name, cell in cells.items()).rstrip())


def _text(value: str | int | float | bool | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) and (abs(value) < 1 or value != round(value, 3)) else str(value)
