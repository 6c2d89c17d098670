"""RMS normalisation, and normalisations fused with the sum or the embeddings before them."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import heads_apart, reshaped
from flexspec.ir.onnx.operators.rules import check_rank, check_shape, last_dim, only_attributes, outputs
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator(MICROSOFT, "SimplifiedLayerNormalization")
@operator("", "RMSNormalization")
def rms_normalization(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """x / sqrt(mean(x²) + epsilon) * scale, over the dims from `axis` on."""
    only_attributes(context, node, {"axis", "epsilon", "stash_type"})
    x, scale = context.input(node, 0), context.input(node, 1)
    axis = context.attribute(node, "axis", -1)
    if not -x.rank <= axis < x.rank:
        raise context.refusal(node, f"its axis is {axis}, but its input has {x.rank} dims")
    epsilon = context.attribute(node, "epsilon", 1e-5)
    if axis % x.rank == x.rank - 1 and (split := heads_apart(context, x)) is not None:
        # A norm of each head, whose input has the heads among the tokens.
        size = last_dim(context, node, x, "its input")
        check_shape(context, node, scale, [size], "its scale")
        normal = context.call(_aten.rms_norm.default, split, [size], scale, epsilon)
        return outputs(node, reshaped(context, normal, [list(one.shape) for one in x.trials]))
    if axis % x.rank == x.rank - 1 and scale.shape == x.shape[-1:]:
        return outputs(node, context.call(_aten.rms_norm.default, x, [last_dim(context, node, x, "its input")], scale, epsilon))
    dims = list(range(axis % x.rank, x.rank))
    mean = context.call(_aten.mean.dim, context.call(_aten.pow.Tensor_Scalar, x, 2), dims, True)
    root = context.call(_aten.rsqrt.default, context.call(_aten.add.Tensor, mean, epsilon))
    return outputs(node, context.call(_aten.mul.Tensor, context.call(_aten.mul.Tensor, x, root), scale))


@operator(MICROSOFT, "SkipLayerNormalization")
def skip_layer_normalization(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Layer normalisation of input + skip + bias; output 3 is that sum."""
    only_attributes(context, node, {"epsilon"})
    total = _sum(context, node, bias=context.optional(node, 4))
    return outputs(node, _layer_norm(context, node, total, context.input(node, 2), context.optional(node, 3)), None, None, total)


@operator(MICROSOFT, "SkipSimplifiedLayerNormalization")
def skip_rms_normalization(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """RMS normalisation of input + skip + bias; output 3 is that sum."""
    only_attributes(context, node, {"epsilon"})
    total = _sum(context, node, bias=context.optional(node, 3))
    size = last_dim(context, node, total, "its input")
    gamma = context.input(node, 2)
    check_shape(context, node, gamma, [size], "gamma")
    normal = context.call(_aten.rms_norm.default, total, [size], gamma, _epsilon(context, node))
    return outputs(node, normal, None, None, total)


@operator(MICROSOFT, "EmbedLayerNormalization")
def embed_layer_normalization(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Layer normalisation of the sum of word, position and segment embeddings; output 2 is that sum."""
    only_attributes(context, node, {"epsilon", "mask_index_type"})
    ids, words, places = context.input(node, 0), context.input(node, 2), context.input(node, 3)
    for table, name in ((words, "word_embedding"), (places, "position_embedding")):
        check_rank(context, node, table, {2}, name)
    positions = context.optional(node, 8)
    if positions is None or positions.is_token_free:
        _check_counted(context, node, positions)
        positions = context.positions
    total = context.call(
        _aten.add.Tensor, context.call(_aten.embedding.default, words, ids), context.call(_aten.embedding.default, places, positions)
    )
    if context.has_input(node, 1):
        if not context.has_input(node, 4):
            raise context.refusal(node, "it has segment_ids, but no segment_embedding")
        total = context.call(_aten.add.Tensor, total, context.call(_aten.embedding.default, context.input(node, 4), context.input(node, 1)))
    normal = _layer_norm(context, node, total, context.input(node, 5), context.input(node, 6))
    return outputs(node, normal, _mask_index(context, node), total)


def _check_counted(context: ImportContext, node: NodeProto, positions: Value | None) -> None:
    """Positions that are computed must count from 0; the graph's own position input takes their place."""
    for trial, sizes in zip(() if positions is None else positions.trials, context.trials, strict=False):
        if trial.dim() != 2 or trial.shape[-1] != sizes.length or bool((trial != torch.arange(sizes.length)).any()):
            raise context.refusal(node, "its position_ids are neither the graph's own nor 0, 1, 2, …; such positions are not supported")


def _mask_index(context: ImportContext, node: NodeProto) -> Value | None:
    """How many tokens of each sequence are not padding, as Attention's mask_index."""
    if not context.has_input(node, 7):
        return None
    return context.call(_aten.sum.dim_IntList, context.input(node, 7), [1], dtype=torch.int32)


def _sum(context: ImportContext, node: NodeProto, bias: Value | None) -> Value:
    x, skip = context.input(node, 0), context.input(node, 1)
    for value, name in ((x, "input"), (skip, "skip")):
        check_rank(context, node, value, {2, 3}, name)
    if bias is not None:
        check_shape(context, node, bias, [last_dim(context, node, x, "its input")], "bias")
    total = context.call(_aten.add.Tensor, x, skip)
    return total if bias is None else context.call(_aten.add.Tensor, total, bias)


def _layer_norm(context: ImportContext, node: NodeProto, x: Value, gamma: Value, beta: Value | None) -> Value:
    size = last_dim(context, node, x, "its input")
    check_shape(context, node, gamma, [size], "gamma")
    if beta is not None:
        check_shape(context, node, beta, [size], "beta")
    return context.call(_aten.layer_norm.default, x, [size], gamma, beta, _epsilon(context, node))


def _epsilon(context: ImportContext, node: NodeProto) -> float:
    return float(context.attribute(node, "epsilon", 1e-12))
