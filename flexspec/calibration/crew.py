"""The ranks that measure together, so that what they share is shared while a clock runs."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Protocol

_FEWEST, _MOST = 2, 30
Average = Callable[[Sequence[float]], float]


class Crew(Protocol):
    """Ranks in step with each other.

    Attributes:
        rank: this one.
        size: how many there are.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """What every rank gives, in the order of ranks; none goes on before all have given it."""
        ...


class Alone:
    """A crew of one."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        """See `Crew.gather`."""
        return [value]


def measured(run: Callable[[], object], crew: Crew, *, budget_s: float, in_thread: bool = False, average: Average = median) -> float:
    """Seconds of a call while all ranks of a crew do the same, their mean of averages.

    Args:
        run: what is measured; its first call is not counted.
        crew: the ranks.
        budget_s: about how long it may take.
        in_thread: whether all of it runs in the calling thread and never waits. Then only the time is counted in which that had a
            core, so that what else the machine does counts for less.
        average: over the calls.
    """
    clock = thread_time if in_thread else perf_counter
    began = perf_counter()
    run()
    first = max(crew.gather(perf_counter() - began))
    repeats = min(max(round(budget_s / max(first, 1e-9)), _FEWEST), _MOST)
    seconds = []
    for _ in range(repeats):
        began = clock()
        run()
        seconds.append(clock() - began)
    found = crew.gather(average(seconds))
    return float(sum(found) / len(found))
