"""Devices by name, and how much memory of one a cache may take."""

import pytest
import torch

from flexspec.api.devices import affordable_slots, find_device
from flexspec.codegen.kv_storage import KVShape
from flexspec.errors import UsageError

SHAPE = KVShape(num_layers=2, num_kv_heads=3, head_dim=8, padded_head_dim=8, dtype=torch.bfloat16)


def test_the_cpu_is_the_default() -> None:
    assert find_device(None) == find_device("cpu") == torch.device("cpu")


def test_unknown_ones_are_refused() -> None:
    with pytest.raises(UsageError, match=r"device='tpu' is not allowed: give one of cpu, cuda"):
        find_device("tpu")


@pytest.mark.parametrize(("cuda", "reason"), [(None, "was built without CUDA"), ("12.8", "sees no GPU")])
def test_a_gpu_that_is_not_there_is_refused(cuda: str | None, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(UsageError, match=f"device='cuda' needs a GPU, .* {reason}: .*'cpu'"):
        find_device("cuda")


def test_a_cache_takes_nine_tenths_of_what_is_free_and_no_more_than_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SHAPE.bytes_per_slot == 192
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (192_000, 1_000_000))
    assert affordable_slots(SHAPE, wanted=10_000) == 900
    assert affordable_slots(SHAPE, wanted=64) == 64
