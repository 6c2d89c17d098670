"""Parts of a model that are compiled from its files, without the rest."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flexspec.api import lower as lowering
from flexspec.api.lower import Compilation
from flexspec.codegen.batch import chain_batch
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.codegen.weight_store import WeightStore
from flexspec.models import load_model
from flexspec.parallel import ParallelPlan
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from parallel_cases import on_ranks, plan_of, thread_groups
from tiny_models import Family, random_prompt, tiny

IDS = np.array(random_prompt(12), dtype=np.int64)


def _lowered(folder: Path, plan: ParallelPlan = lowering.WHOLE, stage: int = 0, group: ParallelGroup | None = None) -> Compilation:
    loaded = load_model(folder, in_parts=plan.pp > 1)
    return lowering.lower(
        loaded, dtype=torch.float32, buckets=(1, 8), store=WeightStore(), plan=plan, stage=stage, group=group
    )


def _logits(stages: list[Compilation]) -> Tensor:
    caches = [KVStorage.of_requests(stage.model.kv_shape, len(IDS)) for stage in stages]
    rows = []
    for start in range(0, len(IDS), 4):
        value: Tensor | None = None
        for stage, cache in zip(stages, caches, strict=True):
            value = stage.model.forward(chain_batch(IDS[start : start + 4], start=start), cache, value)
        assert value is not None
        rows.append(value.clone())
    return torch.cat(rows)


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing is for one thread; ranks that are processes have one each."""
    lock = threading.Lock()

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return function(*args, **kwargs)

        return run

    for name in ("captured_graph", "run_pipelines"):
        monkeypatch.setattr(f"flexspec.api.lower.{name}", locked(getattr(lowering, name)))


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.bfloat16), pytest.param("gpt2", torch.float32, marks=pytest.mark.slow)])
def test_stages_of_shares_are_the_model(family: Family, dtype: torch.dtype, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72} if family == "llama" else {}
    tiny(family, **heads).to(dtype).save_pretrained(tmp_path)
    graph = lowering.captured_graph(load_model(tmp_path))
    run_passes(graph, FLAT)
    plan = plan_of(graph, tp=2, pp=2)
    groups = [thread_groups(2) for _ in range(2)]
    stages = [on_ranks(2, lambda rank, stage=stage: _lowered(tmp_path, plan, stage, groups[stage][rank])) for stage in range(2)]
    expected = _logits([_lowered(tmp_path)])
    for logits in on_ranks(2, lambda rank: _logits([ranks[rank] for ranks in stages])):
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=5e-5)


def test_a_rank_reads_its_own_weights_and_keeps_none_of_the_file(tmp_path: Path) -> None:
    tiny("llama", layers=6, hidden_size=256, intermediate_size=1024).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    compiled = _lowered(tmp_path, ParallelPlan(pp=3), 1)
    gc.collect()
    assert not _mapped(file)[0]
    assert compiled.model.lowering.weight_bytes < 0.36 * file.stat().st_size

    loaded = load_model(tmp_path, in_parts=True)
    assert _mapped(file)[0] and _mapped(file)[1] < 0.05 * file.stat().st_size
    lowering.lower(loaded, dtype=torch.float32, buckets=(1,), store=WeightStore(), plan=ParallelPlan(pp=3), stage=1)
    assert 0.25 * file.stat().st_size < _mapped(file)[1] < 0.5 * file.stat().st_size


def _mapped(file: Path) -> tuple[bool, int]:
    """Whether a file is mapped into this process, and how many of its bytes are in memory through that."""
    found, resident = False, 0
    lines = Path("/proc/self/smaps").read_text().splitlines()
    for place, line in enumerate(lines):
        if line.endswith(str(file)):
            found = True
            resident += next(int(one.split()[1]) for one in lines[place + 1 :] if one.startswith("Rss:")) * 1024
    return found, resident
