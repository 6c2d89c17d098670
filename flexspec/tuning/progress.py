"""Progress bars of a tuning."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """One bar; `at` moves it."""

    def __init__(self, progress: Progress, description: str, total: int) -> None:
        self._progress = progress
        self._description = description
        self._task = progress.add_task(description, total=total)

    def at(self, completed: int, *, total: int | None = None, detail: str = "") -> None:
        """So much is done, of `total` if that changed."""
        self._progress.update(self._task, completed=completed, total=total, description=f"{self._description} {detail}".rstrip())


@contextmanager
def bar(console: Console, description: str, total: int) -> Iterator[Bar]:
    """A bar on a terminal; elsewhere a line at the beginning and one at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, description, total)
