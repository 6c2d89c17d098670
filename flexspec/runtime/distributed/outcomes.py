"""How a call of the user ends on all ranks alike: its drivers agree, and tell the others."""

from collections.abc import Sequence
from typing import Any

from flexspec.runtime.distributed.commands import Finish
from flexspec.runtime.distributed.ranks import Ranks


def tell(ranks: Ranks, workers: Sequence[int], outcome: Any) -> None:
    """Tell the ranks that serve a driver what the call that they are in returns, or the exception that it raises."""
    ranks.send_all(workers, Finish(outcome))


def result(outcome: Any) -> Any:
    """What a call returns, unless it raises it."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
