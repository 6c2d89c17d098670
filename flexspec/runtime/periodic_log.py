"""A line of figures in the log every few seconds."""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flexspec.errors import UsageError
from flexspec.runtime.draft_counts import DraftCount, DraftCounts
from flexspec.runtime.engine_statistics import EngineStatistics
from flexspec.runtime.stats import PHASES

LOGGER = logging.getLogger("flexspec")


class PeriodicLog:
    """Tells the logger `flexspec`, at level INFO, how the last steps went. Where the line goes, if anywhere, is the user's to say.

    Args:
        every_s: seconds of steps between two lines; idle time does not count. None for no lines.
        statistics: gives what was done so far; called once a line.

    Raises:
        UsageError: if `every_s` is no positive number.
    """

    def __init__(self, every_s: float | None, statistics: Callable[[], EngineStatistics]) -> None:
        check_interval(every_s)
        self._every_ns = math.inf if every_s is None else 1e9 * every_s
        self._statistics = statistics
        self._since_ns = 0
        self._last: EngineStatistics | None = None

    def step(self, nanoseconds: int) -> None:
        """A step took so long; costs less than a microsecond unless a line is due."""
        self._since_ns += nanoseconds
        if self._since_ns >= self._every_ns:
            now = self._statistics()
            if LOGGER.isEnabledFor(logging.INFO):
                LOGGER.info("%s", describe_window(self._last, now, self._since_ns / 1e9))
            self._last = now
            self._since_ns = 0


def check_interval(every_s: object) -> None:
    """Raise UsageError unless `every_s` is a positive number of seconds, or None."""
    if every_s is not None and (isinstance(every_s, bool) or not isinstance(every_s, int | float) or not 0 < every_s <= sys.float_info.max):
        raise UsageError(f"log_every_s={every_s!r} is not allowed: give seconds above 0, for example 10, or None for no lines")


def describe_window(before: EngineStatistics | None, now: EngineStatistics, seconds: float) -> str:
    """One line on what was done between two looks at the statistics.

    Args:
        before: the first look; None for the beginning.
        now: the second.
        seconds: of the steps between them.
    """
    tokens, request_steps, drafted, accepted, preemptions = (
        getattr(now, name) - (getattr(before, name) if before is not None else 0)
        for name in ("new_tokens", "request_steps", "drafted", "accepted", "preemptions")
    )
    steps = now.profile.steps - (before.profile.steps if before is not None else 0)
    spent = {phase: now.profile.seconds[phase] - (before.profile.seconds[phase] if before is not None else 0.0) for phase in PHASES}
    phases = (f"{phase} {1e3 * seconds / max(steps, 1):.2f}" for phase, seconds in spent.items())
    shares = "; ".join(_shares(before, now))
    preempted = f", {preemptions} preempted" if preemptions else ""
    return (
        f"{now.running} running, {now.waiting} waiting{preempted}; "
        f"{tokens / seconds:.1f} tokens/s, {tokens / max(request_steps, 1):.2f} tokens/step; "
        f"{accepted} of {drafted} drafts accepted ({accepted / max(drafted, 1):.1%}){f', {shares}' if shares else ''}; "
        f"KV {now.kv_tokens} of {now.kv_capacity} tokens ({now.kv_tokens / now.kv_capacity:.1%}); ms/step: {', '.join(phases)}"
    )


def _shares(before: EngineStatistics | None, now: EngineStatistics) -> Iterator[str]:
    """Shares of the drafts accepted between two looks, by depth, rank and drafter."""
    views: dict[str, Callable[[DraftCounts], Mapping[Any, DraftCount]]] = {
        "depth": DraftCounts.by_depth,
        "rank": DraftCounts.by_rank,
        "drafter": DraftCounts.by_drafter,
    }
    for kind, view in views.items():
        old: Mapping[Any, DraftCount] = view(before.acceptance) if before is not None else {}
        parts = []
        for name, count in view(now.acceptance).items():
            drafted, accepted = (getattr(count, part) - getattr(old.get(name), part, 0) for part in ("drafted", "accepted"))
            if drafted:
                parts.append(f"{name} {accepted / drafted:.0%}")
        if parts:
            yield f"by {kind} {', '.join(parts)}"
