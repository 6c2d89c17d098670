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
from transformers import PreTrainedModel

from expert_models import expert_model
from family_models import family
from flexspec.api import lower as lowering
from flexspec.api.lower import Compilation, captured_graph, run_pipelines
from flexspec.codegen.batch import chain_batch
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph
from flexspec.models import LoadedModel, load_model
from flexspec.parallel import ParallelPlan
from flexspec.passes.divide import Division
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from graph_cases import copied, reference_logits
from parallel_cases import on_ranks, plan_of, thread_groups
from tiny_models import random_prompt, tiny

IDS = np.array(random_prompt(12), dtype=np.int64)


def _lowered(loaded: LoadedModel, plan: ParallelPlan = lowering.WHOLE, stage: int = 0, group: ParallelGroup | None = None) -> Compilation:
    return lowering.lower(loaded, dtype=torch.float32, buckets=(1, 8), store=WeightStore(), plan=plan, stage=stage, group=group)


def _logits(compiled: Compilation) -> Tensor:
    cache = KVStorage.of_requests(compiled.model.kv_shape, len(IDS))
    batches = (chain_batch(IDS[start : start + 4], start=start) for start in range(0, len(IDS), 4))
    return torch.cat([compiled.model.forward(batch, cache).clone() for batch in batches])


@pytest.fixture
def captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads trace one at a time, and take a copy of what was captured; ranks that are processes have a thread each."""
    lock, graphs = threading.Lock(), list[ModelGraph]()

    def captured(loaded: LoadedModel, **options: Any) -> ModelGraph:
        with lock:
            if not graphs:
                graphs.append(captured_graph(loaded, **options))
            return copied(graphs[0])

    def run_one(*args: Any, **options: Any) -> Division:
        with lock:
            return run_pipelines(*args, **options)

    monkeypatch.setattr(lowering, "captured_graph", captured)
    monkeypatch.setattr(lowering, "run_pipelines", run_one)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "nine heads": lambda: tiny("llama", num_attention_heads=9, num_key_value_heads=3, hidden_size=72),
    "by head": lambda: family("gpt_neox", hidden_size=48, num_attention_heads=3),
    "experts": lambda: expert_model("mixtral", num_attention_heads=6, num_key_value_heads=3),
    "experts with biases": lambda: expert_model("gpt_oss", num_attention_heads=6, num_key_value_heads=3),
}


@pytest.mark.parametrize("name", [name if name == "nine heads" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
@pytest.mark.usefixtures("captured_once")
def test_shares_of_a_bfloat16_file_are_the_model_in_float32(name: str, tmp_path: Path) -> None:
    MODELS[name]().to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = load_model(tmp_path, in_parts=True)
    graph = lowering.captured_graph(loaded, own_dtype=True)
    run_passes(graph, FLAT)
    plan, groups = plan_of(graph, tp=2), thread_groups(2)
    ranks = on_ranks(2, lambda rank: _lowered(loaded, plan, 0, groups[rank]))
    assert [rank.model.kv_shape.num_kv_heads for rank in ranks] == [2, 1]
    first, second = on_ranks(2, lambda rank: _logits(ranks[rank]))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, reference_logits(load_model(tmp_path).module, torch.from_numpy(IDS)), rtol=1e-5, atol=5e-5)


def test_a_rank_reads_its_own_weights_and_keeps_none_of_the_file(tmp_path: Path) -> None:
    tiny("llama", layers=4, hidden_size=256, intermediate_size=1024).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    size = file.stat().st_size
    loaded = load_model(tmp_path, in_parts=True)
    assert _mapped(file)[0] and _mapped(file)[1] < 0.2 * size
    compiled = _lowered(loaded, ParallelPlan(pp=4), 2)
    assert 0.2 * size < _mapped(file)[1] < 0.5 * size
    assert compiled.model.lowering.weight_bytes < 0.25 * size
    del loaded
    gc.collect()
    assert not _mapped(file)[0]


def _mapped(file: Path) -> tuple[bool, int]:
    """Whether a file is mapped into this process, and how many of its bytes are in memory through that."""
    found, resident = False, 0
    lines = Path("/proc/self/smaps").read_text().splitlines()
    for place, line in enumerate(lines):
        if line.endswith(str(file)):
            found = True
            resident += next(int(one.split()[1]) for one in lines[place + 1 :] if one.startswith("Rss:")) * 1024
    return found, resident
