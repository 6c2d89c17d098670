"""Both CPU targets against the model itself, what they report, and the weights they share."""

import gc

import numpy as np
import pytest
import torch
from codegen_cases import DTYPES, as_tree, compile_graph, compiled, in_batch, in_chunks, path, rounded_reference, text
from torch import Tensor

from flexspec.codegen import compile as compile_module
from flexspec.codegen.batch import chain_batch
from flexspec.codegen.compile import compile_for_cpu
from flexspec.codegen.cpu.native.build import NativeBuildError, NativeUnavailable
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.ir.ops import ATTENTION
from flexspec.models.prune import prune_layers
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from graph_cases import TokenModule, flat_graph, reference_logits, served
from tiny_models import FAMILIES, Family, tiny


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_module(family: Family, dtype: torch.dtype, target: str) -> None:
    module, model = compiled(family, target=target, dtype=dtype)
    assert model.vocab_size == 288 and model.kv_shape.dtype == dtype and model.kv_shape.head_dim == 8
    ids = text(19)
    expected = reference_logits(rounded_reference(module, dtype), torch.from_numpy(ids))
    difference = (in_chunks(model, ids, 7) - expected).abs()
    if dtype == torch.float32:
        assert difference.max() < 5e-5
    else:
        assert difference.mean() < 0.03 * expected.std() and difference.max() < 0.2 * expected.std()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tied_weights_biases_and_odd_sizes(dtype: torch.dtype, target: str) -> None:
    odd = {"hidden_size": 30, "head_dim": 6, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 45, "vocab": 301}
    module, model = compiled(
        "llama", target=target, dtype=dtype, layers=1, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, **odd
    )
    ids = text(9)
    expected = reference_logits(rounded_reference(module, dtype), torch.from_numpy(ids))
    difference = (in_chunks(model, ids, 4) - expected).abs().max()
    assert difference < (5e-5 if dtype == torch.float32 else 0.2 * expected.std())


@pytest.mark.parametrize("family", ["mistral", "gpt2"])
def test_trees_equal_chains(family: Family, target: str) -> None:
    _, model = compiled(family, target=target, dtype=torch.float32)
    random = np.random.default_rng(1)
    parents = [int(random.integers(max(-1, node - 5), node)) for node in range(40)]
    prompt, nodes = text(11, 1), text(40, 2)
    logits = as_tree(model, prompt, nodes, parents)
    for node in range(0, 40, 3):
        chain = np.concatenate([prompt, nodes[path(parents, node)]])
        torch.testing.assert_close(logits[node], in_chunks(model, chain, 64)[-1], atol=5e-5, rtol=1e-5)


def test_batches_equal_single_requests(target: str) -> None:
    _, model = compiled("qwen3", target=target, dtype=torch.float32)
    texts = [text(length, length) for length in (9, 1, 14)]
    for got, ids in zip(in_batch(model, texts, 4, block_size=4), texts, strict=True):
        torch.testing.assert_close(got, in_chunks(model, ids, 64), atol=5e-5, rtol=1e-5)


def test_only_wanted_rows_come_back(target: str) -> None:
    _, model = compiled("llama", target=target, dtype=torch.float32)
    ids = text(8)
    kv = KVStorage(model.kv_shape, num_blocks=1, block_size=16)
    everything = model.forward(chain_batch(ids), kv).clone()
    for rows in ([7], [5, 0, 5], []):
        got = model.forward(chain_batch(ids, output_rows=np.array(rows, dtype=np.int32)), kv)
        assert got.shape == (len(rows), 288) and got.dtype == torch.float32 and got.is_contiguous()
        torch.testing.assert_close(got, everything[rows], atol=1e-5, rtol=1e-5)


def test_the_report_names_what_runs_each_operator(target: str) -> None:
    for family in ("llama", "opt"):
        report = compiled(family, target=target, dtype=torch.float32)[1].lowering
        operators = {"aten.embedding.default", "flexspec.packed_linear.default", "flexspec.tree_attention.default", "aten.add.Tensor"}
        operators |= {"flexspec.rms_norm.default", "flexspec.gated_activation.default"} if family == "llama" else {"aten.relu.default"}
        assert operators <= report.implementations.keys()
        if target == "cpu-native":
            assert report.reason == "" and report.workspace_bytes > 0
            assert all(how.startswith("native") for how in report.implementations.values())
        else:
            assert report.reason == "not asked for"


class Plain(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4)
        return ATTENTION(heads, heads, heads, 0.5, None, None, None).reshape(*position_ids.shape, 8)


class HyperbolicSine(Plain):
    """Has an operator that the native target lacks."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return super().middle(x, position_ids).sinh()


def test_an_operator_without_native_form_goes_to_pytorch_with_the_reason() -> None:
    module = HyperbolicSine()
    graph = flat_graph(module)
    with torch.no_grad():
        run_passes(graph, (*RECOGNITION[RECOGNITION.index(flatten_tokens) + 1 :], *SERVING))
    model = compile_for_cpu(graph, dtype=torch.float32, max_positions=None, max_pass_tokens=16, store=WeightStore())
    if model.lowering.reason.startswith("no native form"):
        assert model.lowering.reason == "no native form of aten.sinh.default"
    assert model.lowering.target == "cpu-torch"
    ids = np.arange(9, dtype=np.int64)
    torch.testing.assert_close(in_chunks(model, ids, 4), reference_logits(module, torch.from_numpy(ids)), atol=1e-5, rtol=1e-5)


def test_without_a_compiler_pytorch_runs_it_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise NativeUnavailable("no C++ compiler")

    monkeypatch.setattr(compile_module, "load_library", unavailable)
    graph = served("llama")[1]
    model = compile_for_cpu(graph, dtype=torch.float32, max_positions=None, max_pass_tokens=16, store=WeightStore())
    assert (model.lowering.target, model.lowering.reason) == ("cpu-torch", "no C++ compiler")


def test_a_compiler_that_fails_is_told_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise NativeBuildError("g++ failed")

    monkeypatch.setattr(compile_module, "load_library", failing)
    with pytest.warns(RuntimeWarning, match=r"native kernels could not be built.*g\+\+ failed"):
        model = compile_for_cpu(served("llama")[1], dtype=torch.float32, max_positions=None, max_pass_tokens=16, store=WeightStore())
    assert model.lowering.target == "cpu-torch" and model.lowering.compile_failed


def test_pruned_models_share_weights(target: str) -> None:
    module = tiny("opt", layers=2)
    store = WeightStore()
    reports = []
    for one in (module, prune_layers(module, 1)):
        graph = capture(one, name="opt")
        with torch.no_grad():
            run_passes(graph, (*RECOGNITION, *SERVING))
        model = compile_graph(graph, target=target, dtype=torch.float32, store=store)
        reports.append(model.lowering)
        ids = text(6)
        torch.testing.assert_close(in_chunks(model, ids, 6), reference_logits(one, torch.from_numpy(ids)), atol=5e-5, rtol=1e-5)
    parameters = sum(parameter.nbytes for parameter in module.parameters())
    position_table = module.model.decoder.embed_positions.weight.nbytes  # the native target computes from positions outside its program
    assert parameters - position_table <= reports[0].weight_bytes < 1.2 * parameters
    assert reports[1].weight_bytes == 0


def test_memory_of_a_freed_module_never_shares_weights(target: str) -> None:
    store = WeightStore()
    ids = np.arange(5, dtype=np.int64)
    for seed in range(3):
        module = Plain()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
        graph = flat_graph(module)
        with torch.no_grad():
            run_passes(graph, (*RECOGNITION[RECOGNITION.index(flatten_tokens) + 1 :], *SERVING))
        model = compile_graph(graph, target=target, dtype=torch.float32, store=store)
        expected = reference_logits(module, torch.from_numpy(ids))
        torch.testing.assert_close(in_chunks(model, ids, 5), expected, atol=5e-5, rtol=1e-5)
        del module, graph, model
        gc.collect()


def test_compiling_leaves_the_module_alone(target: str) -> None:
    module, _ = compiled("gpt2", target=target, dtype=torch.bfloat16)
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())
    torch.testing.assert_close(reference_logits(module, torch.arange(5)), reference_logits(tiny("gpt2"), torch.arange(5)))
