"""Fused operators compute what ONNX Runtime computes, at the positions that the graph is given."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, fx

from flexspec.errors import UsageError
from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import read_onnx
from onnx_operator_cases import CASES, RECORDED, Case, model_of, token_ids


@cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(RECORDED) as file:
        return dict(file)


def imported(model: onnx.ModelProto, folder: Path) -> fx.GraphModule:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return import_graph(read_onnx(path), path=path, name="case", longest=24).module


def positions(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1]).repeat(len(ids), 1)


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    ids = torch.from_numpy(token_ids())
    logits = imported(model_of(CASES[name]), tmp_path)(ids, positions(ids))
    expected = torch.from_numpy(recorded()[name])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    "name", ["rotary", "rotary_offset", "rotary_23", "rotary_23_rows", "embed_layer_norm", "embed_layer_norm_counting"]
)
def test_positions_are_the_ones_given(name: str, tmp_path: Path) -> None:
    graph, ids = imported(model_of(CASES[name]), tmp_path), torch.from_numpy(token_ids())
    whole = graph(ids, positions(ids))
    end = graph(ids[:, 3:], positions(ids)[:, 3:])
    torch.testing.assert_close(end, whole[:, 3:])
    assert (graph(ids[:, 3:], positions(ids)[:, :-3]) - end).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gqa_scale_window", "gqa_softcap", "gqa_smooth", "gqa_sinks", "gqa_alibi", "gqa_rotary"])
def test_attributes_of_attention_matter(name: str) -> None:
    assert np.abs(recorded()[name] - recorded()["gqa"]).max() > 1e-3


_STATIC_CACHE = """
<ir_version: 10, opset_import: ["" : 24]>
decoder (int64[B, L] input_ids, float[B, M, 64] past_key, float[B, M, 64] past_value, int64[B] write_indices, int64[B] nonpad_kv_seqlen)
    => (float[B, L, V] logits, float[B, M, 64] present_key, float[B, M, 64] present_value) {
    x = Gather(table, input_ids)
    k = Sin(x)
    v = Cos(x)
    present_key = TensorScatter<axis = 1>(past_key, k, write_indices)
    present_value = TensorScatter<axis = 1>(past_value, v, write_indices)
    logits = Attention<q_num_heads = 4, kv_num_heads = 4, is_causal = 1, softcap = 3.0>(x, present_key, present_value,,,, nonpad_kv_seqlen)
}
"""


def test_a_cache_of_fixed_size_that_is_written_into(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(_STATIC_CACHE)
    table = np.random.RandomState(0).randn(20, 64).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    ids, cache = token_ids(), np.zeros((2, 12, 64), np.float32)
    lengths = {"write_indices": np.zeros(2, np.int64), "nonpad_kv_seqlen": np.full(2, ids.shape[1])}
    given = {"input_ids": ids, "past_key": cache, "past_value": cache, **lengths}
    expected = torch.from_numpy(ReferenceEvaluator(model).run(["logits"], given)[0])
    logits = imported(model, tmp_path)(torch.from_numpy(ids), positions(torch.from_numpy(ids)))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


_JOINED_CACHE = """
h = Reshape(x, split) t = Transpose<perm = [0, 2, 1, 3]>(h) flat = Concat<axis = 0>(any, long, size) k = Reshape(t, flat)
present_key = Concat<axis = 1>(past_key, k)
parted = Concat<axis = 0>(batched, heads, long, size) p = Reshape(present_key, parted) u = Transpose<perm = [0, 2, 1, 3]>(p)
logits = Reshape(u, merged)
"""


def test_a_cache_with_batch_and_heads_in_one_dim(tmp_path: Path) -> None:
    numbers = {"split": [0, 0, 4, 16], "merged": [0, 0, 64], "any": [-1], "size": [16], "heads": [4]}
    model = model_of(Case(nodes=_JOINED_CACHE, constants={name: np.array(given) for name, given in numbers.items()}))
    model.graph.input.append(onnx.helper.make_tensor_value_info("past_key", onnx.TensorProto.FLOAT, ["rows", "past", 16]))
    ids = torch.from_numpy(token_ids())
    logits = imported(model, tmp_path)(ids, positions(ids))
    table = onnx.numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == "table"))
    np.testing.assert_array_equal(logits.numpy(), table[ids])


def _changed(name: str, operator: str, **attributes: object) -> onnx.ModelProto:
    model = model_of(CASES[name])
    node = next(node for node in model.graph.node if node.op_type == operator)
    for attribute, value in attributes.items():
        for old in [one for one in node.attribute if one.name == attribute]:
            node.attribute.remove(old)
        node.attribute.append(onnx.helper.make_attribute(attribute, value))
    return model


@pytest.mark.parametrize(
    ("name", "operator", "attributes", "message"),
    [
        ("gqa", "GroupQueryAttention", {"causal": 0}, "see"),
        ("gqa", "GroupQueryAttention", {"k_quant_type": "PER_TENSOR"}, "k_quant_type"),
        ("gqa", "GroupQueryAttention", {"num_heads": 5}, "multiple of 5 heads"),
        ("gqa", "GroupQueryAttention", {"surprise": 1}, "surprise"),
        ("mha_causal", "MultiHeadAttention", {"unidirectional": 0}, "see"),
        ("attention", "Attention", {"do_rotary": 1}, "do_rotary"),
        ("attention", "Attention", {"qkv_hidden_sizes": [64, 64, 63]}, "192 columns"),
        ("rotary", "RotaryEmbedding", {"scale": 2.0}, "scale"),
        ("rotary_partial", "RotaryEmbedding", {"rotary_embedding_dim": 6}, "rotary_embedding_dim is 6"),
        ("nbits_4", "MatMulNBits", {"bits": 2}, "4 and 8 are supported"),
        ("nbits_4", "MatMulNBits", {"K": 48}, "48 columns"),
        ("nbits_4", "MatMulNBits", {"N": 7}, r"it must have \[7, 4, 8\]"),
        ("dequantize_blocks", "DequantizeLinear", {"block_size": 8}, r"need \[8, 6\]"),
        ("skip_layer_norm", "SkipLayerNormalization", {"surprise": 1}, "surprise"),
    ],
)
def test_refused_by_name(name: str, operator: str, attributes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        imported(_changed(name, operator, **attributes), tmp_path)
    assert operator in str(refusal.value)
