"""What ends a job whose ranks need each other, and what on a rank counts as that."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TRANSPORTS = ("gloo", "nccl")
"""What the messages of a transport's failures name."""
_REFUSED = "can't allocate memory"
"""What PyTorch says where a system refuses memory."""


class RankFailure(RuntimeError):
    """Another rank can't go on, or doesn't answer."""


@contextmanager
def memory_told(rank: int) -> Iterator[None]:
    """Around what only this rank's memory may be too small for: the others are told which one it is.

    Raises:
        RankFailure: if it is.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RankFailure(f"rank {rank} has no memory left: {str(error) or type(error).__name__}") from error
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        raise RankFailure(f"rank {rank} has no memory left: {error}") from error


@contextmanager
def transport_told(others: str, *, rank: int, timeout_s: float) -> Iterator[None]:
    """Around what waits for other ranks: failures of the transport, as one that says who is missing.

    Args:
        others: who that is.
        rank: this one.
        timeout_s: seconds that they had.

    Raises:
        RankFailure: if they are gone, or did not answer.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error)
        if not any(transport in reason.lower() for transport in _TRANSPORTS):
            raise
        what = f"gave no answer for {timeout_s:g} s" if "timed out" in reason.lower() else "is gone: its connection was closed"
        raise RankFailure(f"{others} {what}, as rank {rank} saw it") from error
