"""RotaryEmbedding of ONNX and of ONNX Runtime, and the rotation inside ONNX Runtime's attention operators."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.heads import merge_heads, split_heads, swap
from flexspec.ir.onnx.operators.position_rows import rows_by
from flexspec.ir.onnx.operators.rules import check_rank, last_dim, only_attributes, outputs
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator("", "RotaryEmbedding")
def rotary_embedding(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Opset 23: tables of all positions with position_ids, or of the tokens' own without."""
    only_attributes(context, node, {"interleaved", "num_heads", "rotary_embedding_dim"})
    cos, sin = context.input(node, 1), context.input(node, 2)
    if context.has_input(node, 3):
        cos, sin = _rows(context, node, cos, sin, context.input(node, 3))
    return outputs(node, _rotate_heads(context, node, cos, sin))


@operator(MICROSOFT, "RotaryEmbedding")
def microsoft_rotary_embedding(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """position_ids are [batch, length], or [1]: the position of the first token."""
    only_attributes(context, node, {"interleaved", "num_heads", "rotary_embedding_dim", "scale", "is_packed_batching"})
    if context.attribute(node, "is_packed_batching", 0):
        raise context.refusal(node, "is_packed_batching is not supported: a batch must be rectangular")
    if context.attribute(node, "scale", 1.0) != 1.0:
        raise context.refusal(node, f"its scale is {context.attribute(node, 'scale')}; only 1 is supported")
    cos, sin = _rows(context, node, context.input(node, 2), context.input(node, 3), context.input(node, 1))
    return outputs(node, _rotate_heads(context, node, cos, sin))


def rotate(context: ImportContext, node: NodeProto, x: Value, cos: Value, sin: Value, *, interleaved: bool) -> Value:
    """Rotate x [batch, length, heads, head_dim] by cos, sin [batch, length, rotary_dim / 2]; further dims pass through.

    Raises:
        UsageError: if the sizes do not fit.
    """
    for table, name in ((cos, "cosines"), (sin, "sines")):
        check_rank(context, node, table, {2, 3}, name)
    half, head_dim = last_dim(context, node, cos, "its table of cosines"), last_dim(context, node, x, "its input")
    if last_dim(context, node, sin, "its table of sines") != half or not 0 < 2 * half <= head_dim:
        raise context.refusal(
            node, f"its tables have {half} and {sin.shape[-1]} columns; both must have half as many as are rotated of the head's {head_dim}"
        )
    if 2 * half < head_dim:
        turned = context.call(_aten.slice.Tensor, x, 3, 0, 2 * half)
        rest = context.call(_aten.slice.Tensor, x, 3, 2 * half, head_dim)
        rotated = rotate(context, node, turned, cos, sin, interleaved=interleaved)
        return context.call(_aten.cat.default, [rotated, rest], -1)
    wide = (
        (_interleaved_table if interleaved else _half_table)(context, cos),
        (_interleaved_table if interleaved else _half_table)(context, sin),
    )
    cos, sin = (context.call(_aten.unsqueeze.default, table, table.rank - 1) for table in wide)
    other = (_swapped_pairs if interleaved else _swapped_halves)(context, x, half)
    return context.call(_aten.add.Tensor, context.call(_aten.mul.Tensor, x, cos), context.call(_aten.mul.Tensor, other, sin))


def _half_table(context: ImportContext, table: Value) -> Value:
    return context.call(_aten.cat.default, [table, table], -1)


def _interleaved_table(context: ImportContext, table: Value) -> Value:
    return context.call(_aten.repeat_interleave.self_int, table, 2, -1)


def _swapped_halves(context: ImportContext, x: Value, half: int) -> Value:
    first = context.call(_aten.slice.Tensor, x, 3, 0, half)
    second = context.call(_aten.slice.Tensor, x, 3, half, 2 * half)
    return context.call(_aten.cat.default, [context.call(_aten.neg.default, second), first], -1)


def _swapped_pairs(context: ImportContext, x: Value, half: int) -> Value:
    even = context.call(_aten.slice.Tensor, x, 3, 0, 2 * half, 2)
    odd = context.call(_aten.slice.Tensor, x, 3, 1, 2 * half, 2)
    pairs = context.call(_aten.stack.default, [context.call(_aten.neg.default, odd), even], -1)
    return context.call(_aten.flatten.using_ints, pairs, -2, -1)


def _rows(context: ImportContext, node: NodeProto, cos: Value, sin: Value, positions: Value) -> tuple[Value, Value]:
    return rows_by(context, node, cos, positions), rows_by(context, node, sin, positions)


def _rotate_heads(context: ImportContext, node: NodeProto, cos: Value, sin: Value) -> Value:
    """The node's input, [batch, heads, length, head_dim] or [batch, length, heads * head_dim], rotated."""
    x = context.input(node, 0)
    check_rank(context, node, x, {3, 4}, "its input")
    interleaved = bool(context.attribute(node, "interleaved", 0))
    rotary_dim = context.attribute(node, "rotary_embedding_dim", 0)
    half = last_dim(context, node, cos, "its table of cosines")
    if rotary_dim and rotary_dim != 2 * half:
        raise context.refusal(node, f"its rotary_embedding_dim is {rotary_dim}, but its tables rotate {2 * half} dims")
    if x.rank == 4:
        if not rotary_dim and last_dim(context, node, x, "its input") != 2 * half:
            raise context.refusal(node, f"its heads have {x.shape[-1]} dims, but its tables rotate {2 * half}")
        return swap(context, rotate(context, node, swap(context, x), cos, sin, interleaved=interleaved))
    width, heads = last_dim(context, node, x, "its input"), context.attribute(node, "num_heads", 0)
    # Without a number of heads the whole head is rotated, which gives the head's size.
    heads = heads or width // (2 * half)
    if heads < 1:
        raise context.refusal(node, f"its num_heads is {heads}, and its tables rotate {2 * half} of its {width} columns")
    return merge_heads(context, rotate(context, node, split_heads(context, node, x, heads, "its input"), cos, sin, interleaved=interleaved))
