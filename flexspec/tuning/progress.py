"""Progress of a tuning: bars on a terminal, elsewhere a line a minute."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_A_LINE = 60.0

Show = Callable[[str, int, int], None]
"""Shows what is going on, how much is done, and of how much."""


class Bar:
    """How far one thing is; `at` tells.

    Args:
        description: of the thing.
        total: how much there is to do.
        show: told whatever is new.
    """

    def __init__(self, description: str, total: int, show: Show) -> None:
        self._description = description
        self._total = total
        self._show = show

    def at(self, completed: int, *, total: int | None = None, detail: str = "") -> None:
        """So much is done, of `total` if that changed."""
        self._total = self._total if total is None else total
        self._show(f"{self._description} {detail}".rstrip(), completed, self._total)


@contextmanager
def bar(console: Console, description: str, total: int) -> Iterator[Bar]:
    """A bar on a terminal; elsewhere a line now and then, and one at the end."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(description, total=total)
            yield Bar(description, total, lambda text, done, of: progress.update(task, description=text, completed=done, total=of))
    else:
        lines = _Lines(console)
        try:
            yield Bar(description, total, lines.show)
        finally:
            lines.end()


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed_at = monotonic()
        self._pending = ""

    def show(self, text: str, completed: int, total: int) -> None:
        self._pending = f"{text}: {completed}/{total}"
        if monotonic() - self._printed_at >= _SECONDS_A_LINE:
            self.end()

    def end(self) -> None:
        if self._pending:
            self._console.print(self._pending, markup=False, highlight=False, soft_wrap=True)
        self._printed_at, self._pending = monotonic(), ""
