"""Models that no kernel is made for: refused before anything takes long, or run by references where that is allowed."""

import re
from dataclasses import replace

import pytest
import torch
from codegen_cases import in_chunks, storage, text

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.cuda import compile as compiling
from flexspec.codegen.cuda.compile import compile_for_gpu
from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.kv_storage import KVShape
from flexspec.codegen.weight_store import WeightStore
from graph_cases import served

CUDA = torch.device("cuda", 0)
SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=128, padded_head_dim=128, dtype=torch.bfloat16, device=CUDA, page_size=16)


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def is_covered(shape: KVShape, *, dtype: torch.dtype = torch.bfloat16, rotary_dim: int = 64, allow_references: bool = False) -> bool:
    return compiling._is_covered(shape, dtype, rotary_dim=rotary_dim, allow_references=allow_references)


@pytest.mark.usefixtures("capability")
def test_what_there_are_kernels_for_is_covered() -> None:
    for head_dim in (16, 80, 96, 128, 256):
        assert is_covered(replace(SHAPE, head_dim=head_dim))
    assert is_covered(replace(SHAPE, dtype=torch.float8_e4m3fn))
    assert is_covered(replace(SHAPE, dtype=torch.float16), dtype=torch.float16)
    assert is_covered(replace(SHAPE, head_dim=20, device=torch.device("cpu")))


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("shape", "rotary_dim", "case"),
    [
        (replace(SHAPE, head_dim=20), 20, "head size 20: head sizes are multiples of 8 from 16 to 256"),
        (replace(SHAPE, head_dim=512), 64, "head size 512: "),
        (replace(SHAPE, dtype=torch.float8_e4m3fnuz), 64, "cache torch.float8_e4m3fnuz"),
        (replace(SHAPE, dtype=torch.float8_e4m3fn), 24, "128 dims, 24 of them turned, to an 8-bit cache"),
    ],
)
def test_other_cases_are_named_or_run_by_references_with_one_warning(shape: KVShape, rotary_dim: int, case: str) -> None:
    with pytest.raises(UncoveredCase, match=re.escape(case)):
        is_covered(shape, rotary_dim=rotary_dim)
    with pytest.warns(RuntimeWarning, match=f"references run in the place of kernels, slowly.*{re.escape(case)}") as warned:
        assert not is_covered(shape, rotary_dim=rotary_dim, allow_references=True)
    assert len(warned) == 1


def by_reference(monkeypatch: pytest.MonkeyPatch) -> GpuModel:
    monkeypatch.setattr(compiling, "_is_covered", lambda *given, **options: False)
    return on_cpu()


def on_cpu() -> GpuModel:
    return compile_for_gpu(
        served("qwen3")[1],
        dtype=torch.float32,
        max_positions=None,
        buckets=(4, 16),
        store=WeightStore(),
        device=torch.device("cpu"),
        cache_dtype=torch.float8_e4m3fn,
        compile_blocks=False,
    )


def test_references_work_on_copies_and_bring_back_what_they_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    model = by_reference(monkeypatch)
    kernels = {name: how for name, how in model.lowering.implementations.items() if name.startswith("flexspec_gpu.")}
    assert len(kernels) == 2 and set(kernels.values()) == {"reference"}
    ids = text(13)
    expected = in_chunks(on_cpu(), ids, 5)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)  # as it is of a tensor on a GPU
        kv = storage(model, 16)
        parts = [model.forward(chain_batch(ids[first : first + 5], start=first), kv).clone() for first in (0, 5, 10)]
    assert torch.equal(torch.cat(parts), expected)
