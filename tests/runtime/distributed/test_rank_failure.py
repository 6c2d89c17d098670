"""What counts as a rank's failure, and how it is told."""

import pytest
import torch

from flexspec.runtime.distributed.rank_failure import RankFailure, memory_told, transport_told


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "rank 3 has no memory left: MemoryError"),
        (torch.OutOfMemoryError("40 GB"), "rank 3 has no memory left: 40 GB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 40 GB"), "rank 3 has no memory left: DefaultCPUAllocator: "),
    ],
)
def test_memory_that_is_refused_is_told(error: Exception, message: str) -> None:
    with pytest.raises(RankFailure) as caught, memory_told(3):
        raise error
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("[gloo] Timed out waiting 600000ms", "rank 1 gave no answer for 600 s, as rank 0 saw it"),
        ("[gloo] Connection closed by peer", "rank 1 is gone: its connection was closed, as rank 0 saw it"),
    ],
)
def test_a_transport_that_fails_is_told(reason: str, message: str) -> None:
    with pytest.raises(RankFailure) as caught, transport_told("rank 1", rank=0, timeout_s=600.0):
        raise RuntimeError(reason)
    assert str(caught.value) == message


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"^a shape$"), memory_told(0), transport_told("rank 1", rank=0, timeout_s=1.0):
        raise RuntimeError("a shape")
