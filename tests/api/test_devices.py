"""Devices by name, and how much memory of one a cache may take."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flexspec
from compile_once import model
from flexspec.api import lower
from flexspec.api.devices import Placement, affordable_slots, find_cache_dtype, find_device, find_dtype
from flexspec.codegen.kv_storage import KVShape
from flexspec.errors import UsageError

SHAPE = KVShape(num_layers=2, num_kv_heads=3, head_dim=8, padded_head_dim=8, dtype=torch.bfloat16)


CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretends that a GPU is there, of a compute capability such as "9.0", or one of AMD's."""

    def pretend(kind: str) -> None:
        is_amd = kind.startswith("gfx")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        monkeypatch.setattr(torch.version, "hip", "7.0" if is_amd else None)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=f"{kind}:sramecc+:xnack-"))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: tuple(map(int, kind.split("."))))

    return pretend


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


@pytest.mark.parametrize("kind", ["8.0", "8.9", "9.0", "10.3", "gfx942"])
def test_gpus_that_there_are_kernels_for_are_found(kind: str, gpu: Callable[[str], None]) -> None:
    gpu(kind)
    assert find_device("cuda") == CUDA


@pytest.mark.parametrize("kind", ["7.5", "11.0", "12.0", "gfx90a", "gfx1100"])
def test_other_gpus_are_refused_by_name_before_anything_is_compiled(kind: str, gpu: Callable[[str], None]) -> None:
    gpu(kind)
    with pytest.raises(UsageError, match=f"no kernels for Some GPU, a GPU of .*{kind}: there are some for .* 8, 9 and 10, and .* gfx942"):
        flexspec.compile("./no-such-model", device="cuda")


def test_without_triton_the_message_says_what_to_install(gpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu("9.0")
    monkeypatch.setattr("flexspec.api.devices.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"device='cuda' needs Triton.*: pip install triton, or give 'cpu'"):
        find_device("cuda")


def test_float16_runs_on_gpus_alone() -> None:
    assert find_dtype("float16", CUDA) == torch.float16
    with pytest.raises(UsageError, match=r"dtype='float16' is not allowed on a CPU: give one of float32, bfloat16, or device='cuda'"):
        find_dtype("float16", torch.device("cpu"))
    with pytest.raises(UsageError, match=r"dtype='int8' is not allowed: give one of float32, bfloat16, float16$"):
        find_dtype("int8", CUDA)


@pytest.mark.parametrize(
    ("kind", "expected"), [("9.0", torch.float8_e4m3fn), ("10.0", torch.float8_e4m3fn), ("gfx942", torch.float8_e4m3fnuz)]
)
def test_8_bit_caches_are_of_the_type_that_the_gpu_has(kind: str, expected: torch.dtype, gpu: Callable[[str], None]) -> None:
    gpu(kind)
    assert find_cache_dtype("fp8", dtype=torch.bfloat16, device=CUDA) == expected
    assert find_cache_dtype("auto", dtype=torch.bfloat16, device=CUDA) == torch.bfloat16
    with pytest.raises(UsageError, match=r"kv_cache_dtype='fp8' is not allowed for a model in float32: .*dtype='bfloat16'"):
        find_cache_dtype("fp8", dtype=torch.float32, device=CUDA)


def test_8_bit_caches_are_refused_where_there_are_none(gpu: Callable[[str], None]) -> None:
    gpu("8.0")
    with pytest.raises(UsageError, match=r"kv_cache_dtype='fp8' .* on Some GPU \(sm_80\), only on sm_90, sm_100, gfx942: give 'auto'"):
        find_cache_dtype("fp8", dtype=torch.bfloat16, device=CUDA)


def test_all_models_get_the_device_and_the_types(gpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu("9.0")
    given: list[dict[str, Any]] = []

    def lower_here(loaded: Any, **options: Any) -> Any:
        given.append(options)
        return lower.lower(loaded, **options | {"placement": Placement(), "dtype": torch.float32})

    monkeypatch.setattr("flexspec.api.compile.lower", lower_here)
    monkeypatch.setattr("flexspec.api.drafters.lower", lower_here)
    llm = flexspec.compile(
        model(), ["prune:1"], dtype="float16", device="cuda", kv_cache_dtype="fp8", allow_reference_kernels=True, max_batch=1, max_len=64
    )
    assert llm.plan.strategy.dtype == "float16" and "KV cache at most" in str(llm.plan) and ", in float32" in str(llm.plan)
    placement = Placement(device=CUDA, cache_dtype=torch.float8_e4m3fn, allow_references=True)
    assert [(one["placement"], one["dtype"]) for one in given] == [(placement, torch.float16)] * 2
