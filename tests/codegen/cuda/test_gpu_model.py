"""The GPU target on a CPU, where the kernels' references run: the same graph, buckets, padding, pages and walk."""

from functools import partial

import numpy as np
import pytest
import torch
from codegen_cases import as_tree, in_batch, in_chunks, path, rounded_reference, storage, text
from torch import nn
from torch._dynamo.testing import CompileCounter

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.cuda.compile import compile_for_gpu
from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from graph_cases import Head, reference_logits, served
from tiny_models import FAMILIES, Family, tiny

PARENTS = (-1, 0, 0, 1, 1, 2, 3, 6)


def on_gpu(
    graph: ModelGraph, *, dtype: torch.dtype = torch.float32, cache_dtype: torch.dtype | None = None, compile_blocks: bool = False
) -> GpuModel:
    return compile_for_gpu(
        graph,
        dtype=dtype,
        cache_dtype=cache_dtype,
        max_positions=None,
        buckets=(4, 16, 64),
        store=WeightStore(),
        device=torch.device("cpu"),
        compile_blocks=compile_blocks,
    )


def lowered(family: Family, *, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, GpuModel]:
    module, graph = served(family)
    return module, on_gpu(graph, dtype=dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_module(family: Family) -> None:
    module, model = lowered(family)
    ids = text(23)
    expected = reference_logits(module, torch.from_numpy(ids))
    for chunk in (23, 5):
        torch.testing.assert_close(in_chunks(model, ids, chunk), expected, atol=5e-5, rtol=1e-5)


def test_bfloat16_is_close() -> None:
    module, model = lowered("llama", dtype=torch.bfloat16)
    ids = text(12)
    expected = reference_logits(rounded_reference(module, torch.bfloat16), torch.from_numpy(ids))
    torch.testing.assert_close(in_chunks(model, ids, 12), expected, atol=0.2, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz], ids=str)
def test_an_8_bit_cache_rounds_keys_and_values_and_nothing_else(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    module, graph = served("qwen3")
    model = on_gpu(graph, dtype=dtype, cache_dtype=cache_dtype)
    assert model.kv_shape.dtype == cache_dtype and model.kv_shape.bytes_per_slot == 2 * 2 * 2 * 16
    ids = text(12)
    expected = reference_logits(rounded_reference(module, dtype), torch.from_numpy(ids))
    got = in_chunks(model, ids, 5)
    torch.testing.assert_close(got, expected, atol=0.4, rtol=0.1)
    assert not torch.equal(got, in_chunks(on_gpu(served("qwen3")[1], dtype=dtype), ids, 5))


def test_scales_of_an_8_bit_cache_are_each_layers_and_heads_own() -> None:
    _, graph = served("qwen3")
    model = on_gpu(graph, cache_dtype=torch.float8_e4m3fn)
    ids, kv, scaled = text(9), storage(model, 16), storage(model, 16)
    logits = model.forward(chain_batch(ids), kv).clone()
    scales = torch.tensor([[1.0, 0.5], [0.25, 2.0]])  # [layers, kv_heads]
    for name, factors in (("k_scales", scales), ("v_scales", scales.flip(0))):
        ones = getattr(model._module, name)
        assert ones.dtype == torch.float32 and torch.equal(ones, torch.ones_like(scales))
        ones.copy_(factors)
    torch.testing.assert_close(model.forward(chain_batch(ids), scaled), logits, atol=1e-2, rtol=1e-2)
    for name, factors in (("keys", scales), ("values", scales.flip(0))):
        whole, parts = (getattr(cache, name).float()[:, :9, :, :8] for cache in (kv, scaled))  # [layers, tokens, kv_heads, head_dim]
        ratios = torch.where(parts.abs() > 2**-6, whole / parts, torch.nan).movedim(1, 2).flatten(2).nanmedian(dim=2).values
        torch.testing.assert_close(ratios, factors, atol=0, rtol=0.1)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_a_tree_equals_its_paths(family: Family) -> None:
    _, model = lowered(family)
    prompt, nodes = text(9), text(len(PARENTS), seed=1)
    logits = as_tree(model, prompt, nodes, PARENTS)
    for node in range(len(PARENTS)):
        chain = np.concatenate([prompt, nodes[path(PARENTS, node)]])
        torch.testing.assert_close(logits[node], in_chunks(model, chain, 64)[-1], atol=5e-5, rtol=1e-5)


def test_batches_over_pages_equal_single_requests() -> None:
    _, model = lowered("qwen3")
    texts = [text(length, length) for length in (9, 1, 14)]
    for got, ids in zip(in_batch(model, texts, 4, block_size=4), texts, strict=True):
        torch.testing.assert_close(got, in_chunks(model, ids, 64), atol=5e-5, rtol=1e-5)


def test_padding_touches_nothing() -> None:
    _, model = lowered("llama")
    kv = storage(model, 16)
    kv.keys.fill_(torch.nan)
    kv.values.fill_(torch.nan)
    ids = text(5)
    logits = model.forward(chain_batch(ids), kv)
    assert logits.isfinite().all() and len(logits) == 5
    assert kv.keys[:, :5, :, :8].isfinite().all() and kv.keys[:, 5:].isnan().all() and kv.values[:, 5:].isnan().all()


def test_only_wanted_rows_come_back_and_shapes_are_few() -> None:
    _, model = lowered("llama")
    ids, kv = text(8), storage(model, 16)
    everything = model.forward(chain_batch(ids), kv).clone()
    for rows in ([7], [5, 0, 5], []):
        got = model.forward(chain_batch(ids, output_rows=np.array(rows, dtype=np.int32)), kv)
        assert got.shape == (len(rows), 288) and got.dtype == torch.float32 and got.is_contiguous()
        torch.testing.assert_close(got, everything[rows])
    for length in (5, 6, 7):
        model.forward(chain_batch(ids[:length]), kv)
    assert len(model._passes[kv]) == 4, "8, 1, 4 and no rows of logits"


def test_hidden_states_and_features() -> None:
    module = Head()
    graph = capture(module, name="head", hidden_states=("layer",), feature_size=12)
    with torch.no_grad():
        run_passes(graph, (*RECOGNITION, *SERVING))
    model = on_gpu(graph)
    ids, features = text(7), torch.randn(7, 12)
    with torch.no_grad():
        expected = module(torch.from_numpy(ids)[None], torch.arange(7)[None], features[None])
    logits = model.forward(chain_batch(ids), storage(model, 8), features)
    torch.testing.assert_close(logits, getattr(expected, "logits", expected)[0], atol=5e-5, rtol=1e-5)
    assert model.hidden_states([6, 0]).shape == (2, model.hidden_size) and model.hidden_size == 16


def test_weights_are_shared_and_constants_kept() -> None:
    store = WeightStore()
    module = tiny("llama")
    sizes = []
    for _ in range(2):
        graph = capture(module, name="llama")
        with torch.no_grad():
            run_passes(graph, (*RECOGNITION, *SERVING))
        model = compile_for_gpu(
            graph, dtype=torch.bfloat16, max_positions=None, buckets=(16,), store=store, device=torch.device("cpu"), compile_blocks=False
        )
        sizes.append(model.lowering.weight_bytes)
    assert sizes[0] > 0 == sizes[1]
    assert model.lowering.target == "cpu"


def test_pieces_are_compiled_for_one_token_another_number_and_any(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    _, graph = served("llama")
    model = on_gpu(graph, compile_blocks=True)
    ids, kv = text(64), storage(model, 256, block_size=16)
    for length in (1, 2, 4, 5, 16, 17, 23, 64):
        model.forward(chain_batch(ids[:length], block_table=kv.block_table), kv)
    as_tree(model, text(9), text(len(PARENTS), seed=1), PARENTS)
    assert 2 <= counter.frame_count <= 3 * 2, "a block has a piece before the kernels and one behind them"
    assert model.lowering.implementations["flexspec_gpu.tree_attention.default"] == "Triton kernel"
    assert model.lowering.implementations["aten.linear.default"] == "Inductor"


@pytest.mark.slow  # compiles C++ for 20 seconds
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # Inductor's own import
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=str)
def test_a_whole_model_compiles_with_the_operators_in_it(cache_dtype: torch.dtype | None) -> None:
    _, graph = served("llama")
    plain = on_gpu(served("llama")[1], cache_dtype=cache_dtype)
    model = on_gpu(graph, cache_dtype=cache_dtype, compile_blocks=True)
    ids, atol = text(23), 5e-5 if cache_dtype is None else 0.05  # what 8 bits round may lie on either side of a half
    for chunk in (23, 5):
        torch.testing.assert_close(in_chunks(model, ids, chunk), in_chunks(plain, ids, chunk), atol=atol, rtol=1e-5)
    assert "Inductor" in model.lowering.implementations.values()
    whole = torch.compile(plain._module, fullgraph=True)
    kv = storage(plain, 32)
    expected = plain.forward(chain_batch(ids), kv).clone()
    (one,) = plain._passes[kv].values()
    with torch.inference_mode():
        torch.testing.assert_close(whole(*one._inputs)[: len(ids)].float(), expected, atol=atol, rtol=1e-5)
