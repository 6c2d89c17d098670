"""Models that are divided over ranks, in one process, against the same models in one piece."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import FalconConfig, GPTNeoXConfig, PreTrainedModel

from expert_models import expert_model
from flexspec.codegen.batch import Int64, chain_batch
from flexspec.codegen.compile import compile_for_cpu
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.row_invariance import probe_row_invariance
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT, FUSION, SERVING, SERVING_STAGE
from flexspec.passes.shard import Share, shard
from flexspec.passes.stages import cut_stage
from graph_cases import captured, copied
from parallel_cases import column_then_row, gloo_groups, layers_of, on_ranks, thread_groups
from tiny_models import Family, random_prompt, tiny_of

CASES: list[tuple[Family, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}),
    ("opt", {}),
    ("gpt2", {}),
]
SIZES = {"vocab_size": 288, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "queries, keys and values by head": lambda: tiny_of(GPTNeoXConfig(**SIZES, intermediate_size=64)),
    "queries, keys and values by KV head": lambda: tiny_of(FalconConfig(**SIZES, num_kv_heads=2, new_decoder_architecture=True)),
    "ALiBi": lambda: tiny_of(FalconConfig(**SIZES, alibi=True, multi_query=False, parallel_attn=False, bias=True)),
    "experts": lambda: expert_model("mixtral"),
    "experts with biases, sinks": lambda: expert_model("gpt_oss"),
}
CHUNKS = (5, 1, 3, 4, 1, 2)


@functools.cache
def _flat(case: int | str) -> ModelGraph:
    if isinstance(case, str):
        model = capture(OTHERS[case](), name=case)
    else:
        family, overrides = CASES[case]
        _, model = captured(family, **overrides)
    run_passes(model, FLAT)
    return model


def _compiled(
    model: ModelGraph, passes: Any = SERVING, *, native: bool = True, dtype: torch.dtype = torch.float32, group: Any = None
) -> LoweredModel:
    with torch.no_grad():
        run_passes(model, (*FUSION, *passes))
    compiled = compile_for_cpu(model, dtype=dtype, max_positions=None, max_pass_tokens=32, store=WeightStore(), native=native, group=group)
    assert compiled.lowering.target == ("cpu-native" if native else "cpu-torch"), compiled.lowering.reason
    return compiled


def _shares(case: int | str, size: int, **options: Any) -> list[LoweredModel]:
    ranks = []
    for group in thread_groups(size):
        model = copied(_flat(case))
        shard(model, column_then_row(model), Share(rank=group.rank, size=size, group=group.name))
        ranks.append(_compiled(model, group=group, **options))
    return ranks


def _logits(stages: list[LoweredModel], ids: Int64) -> Tensor:
    """Logits of a text that is fed in chunks to stages in turn."""
    caches = [KVStorage.of_requests(stage.kv_shape, len(ids)) for stage in stages]
    rows, start = [], 0
    for count in CHUNKS:
        # Of each chunk the last row alone is wanted: stages before the last give all rows even so.
        batch = chain_batch(ids[start : start + count], start=start, output_rows=np.array([count - 1], dtype=np.int32))
        value: Tensor | None = None
        for stage, cache in zip(stages, caches, strict=True):
            value = stage.forward(batch, cache, value)
        assert value is not None
        rows.append(value.clone())
        start += count
    return torch.cat(rows)


def _text() -> Int64:
    return np.array(random_prompt(sum(CHUNKS)), dtype=np.int64)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("case", [*range(len(CASES)), *OTHERS])
def test_ranks_that_share_a_model_give_its_logits(case: int | str, native: bool) -> None:
    ids = _text()
    whole = _compiled(copied(_flat(case)), native=native)
    ranks = _shares(case, 2, native=native)
    first, second = on_ranks(2, lambda rank: _logits([ranks[rank]], ids))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, _logits([whole], ids), rtol=1e-5, atol=2e-5)
    heads = [rank.kv_shape.num_kv_heads for rank in ranks]
    assert sum(heads) == whole.kv_shape.num_kv_heads and max(heads) - min(heads) <= 1


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_stages_give_the_logits_of_the_whole_bit_for_bit(case: int, native: bool) -> None:
    ids = _text()
    whole = _compiled(copied(_flat(case)), native=native)
    stages = []
    for stage, passes in enumerate((SERVING_STAGE, SERVING)):
        model = copied(_flat(case))
        cut_stage(model, layers_of(model), [(0, 1), (1, 2)], stage)
        stages.append(_compiled(model, passes, native=native))
    assert torch.equal(_logits(stages, ids), _logits([whole], ids))


@pytest.mark.parametrize(("size", "dtype"), [(2, torch.bfloat16), (3, torch.float32)])
def test_a_row_never_depends_on_what_shares_its_pass(size: int, dtype: torch.dtype) -> None:
    ranks = _shares(1, size, dtype=dtype)
    for found in on_ranks(size, lambda rank: probe_row_invariance(ranks[rank])):
        assert found.chains and found.trees


def test_each_rank_has_its_part_of_every_expert() -> None:
    whole, (first, second) = _compiled(copied(_flat("experts"))), _shares("experts", 2)
    assert first.lowering.weight_bytes == second.lowering.weight_bytes
    matrices = 2 * 5 * 3 * 32 * 48 * 4  # layers, experts, projections, hidden, inner, bytes
    assert whole.lowering.weight_bytes - first.lowering.weight_bytes > 0.5 * matrices
    assert all(found.chains and found.trees for found in on_ranks(2, lambda rank: probe_row_invariance((first, second)[rank])))


def test_what_runs_the_parallel_operators_is_told() -> None:
    ranks = _shares(0, 2)
    assert ranks[0].lowering.implementations["flexspec.reduce.default"] == "torch.distributed reduce"
    assert ranks[1].lowering.implementations["flexspec.combine.default"] == "torch.distributed combine"


def test_a_gpu_s_graph_talks_by_functional_collectives() -> None:
    """On a CPU, where kernels are replaced by their references."""
    pytest.importorskip("triton")
    from flexspec.codegen.cuda.compile import compile_for_gpu

    groups, ranks, ids = gloo_groups(2), [], _text()
    for group in groups:
        model = copied(_flat(0))
        shard(model, column_then_row(model), Share(rank=group.rank, size=2, group=group.name))
        run_passes(model, (*FUSION, *SERVING))
        options: dict[str, Any] = {"buckets": (8, 32), "store": WeightStore(), "device": torch.device("cpu"), "compile_blocks": False}
        ranks.append(compile_for_gpu(model, dtype=torch.float32, max_positions=None, **options))
    first, second = on_ranks(2, lambda rank: _logits([ranks[rank]], ids))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, _logits([_compiled(copied(_flat(0)))], ids), rtol=1e-5, atol=2e-5)
