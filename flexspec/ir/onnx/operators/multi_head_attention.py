"""MultiHeadAttention and Attention of ONNX Runtime: queries, keys and values apart or packed, or made from the input by one weight."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.heads import Heads, merge_heads, no_cache, self_attention, split_heads, swap
from flexspec.ir.onnx.operators.padding import padding_mask
from flexspec.ir.onnx.operators.products import linear
from flexspec.ir.onnx.operators.rules import check_rank, check_shape, last_dim, no_input, only_attributes, outputs, positive_int
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator(MICROSOFT, "MultiHeadAttention")
def multi_head_attention(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Self-attention of given queries, keys and values."""
    only_attributes(context, node, {"mask_filter_value", "num_heads", "scale", "unidirectional"})
    no_input(context, node, 9, "cache_indirection")
    no_cache(context, node, 6, 7)
    return outputs(node, _attention(context, node, _separate_heads(context, node), padding=4, bias=5))


@operator(MICROSOFT, "Attention")
def packed_attention(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Self-attention of what one weight [in, q + k + v columns] makes from the input."""
    only_attributes(
        context,
        node,
        {
            "do_rotary",
            "mask_filter_value",
            "num_heads",
            "past_present_share_buffer",
            "qkv_hidden_sizes",
            "rotary_embedding_dim",
            "scale",
            "unidirectional",
        },
    )
    if context.attribute(node, "do_rotary", 0):
        raise context.refusal(node, "do_rotary is not supported: it rotates by positions of its own")
    no_cache(context, node, 4)
    x, weight = context.input(node, 0), context.input(node, 1)
    check_rank(context, node, x, {3}, "its input")
    check_rank(context, node, weight, {2}, "its weights")
    total, heads = last_dim(context, node, weight, "its weights"), positive_int(context, node, "num_heads")
    sizes = list(context.attribute(node, "qkv_hidden_sizes", None) or [total // 3] * 3)
    if len(sizes) != 3 or sum(sizes) != total or any(size <= 0 for size in sizes):
        raise context.refusal(node, f"its weights have {total} columns, which can't be queries, keys and values of {sizes}")
    made = linear(context, x, weight, context.optional(node, 2))
    parts = (_columns(context, made, sum(sizes[:index]), size) for index, size in enumerate(sizes))
    q, k, v = (split_heads(context, node, part, heads, name) for part, name in zip(parts, ("query", "key", "value"), strict=True))
    return outputs(node, _attention(context, node, Heads(q=q, k=k, v=v), padding=3, bias=5))


def _attention(context: ImportContext, node: NodeProto, heads: Heads, *, padding: int, bias: int) -> Value:
    mask = context.optional(node, bias)
    if context.has_input(node, padding):
        filled = context.attribute(node, "mask_filter_value", -10000.0)
        hidden = padding_mask(context, node, context.input(node, padding), filled)
        mask = hidden if mask is None else context.call(_aten.add.Tensor, mask, hidden)
    result = self_attention(
        context,
        node,
        heads,
        scale=context.attribute(node, "scale", 0.0) or None,
        causal=bool(context.attribute(node, "unidirectional", 0)),
        mask=mask,
    )
    return merge_heads(context, result)


def _separate_heads(context: ImportContext, node: NodeProto) -> Heads:
    heads = positive_int(context, node, "num_heads")
    q = context.input(node, 0)
    if q.rank == 5:  # [batch, length, heads, 3, head_dim]
        q, k, v = (context.call(_aten.select.int, q, 3, part) for part in range(3))
        return _biased(context, node, Heads(q=q, k=k, v=v))
    k = context.input(node, 1)
    if k.rank == 5:  # [batch, length, heads, 2, head_dim]
        k, v = (context.call(_aten.select.int, k, 3, part) for part in range(2))
    else:
        k, v = (_by_heads(context, node, one, heads) for one in (k, context.input(node, 2)))
    made = Heads(q=split_heads(context, node, q, heads, "its query"), k=k, v=v)
    # ONNX Runtime adds nothing to keys and values that are apart by heads already.
    return _biased(context, node, made, only_queries=context.input(node, 1).rank == 4)


def _by_heads(context: ImportContext, node: NodeProto, x: Value, heads: int) -> Value:
    return swap(context, x) if x.rank == 4 else split_heads(context, node, x, heads, "its key or value")


def _biased(context: ImportContext, node: NodeProto, heads: Heads, *, only_queries: bool = False) -> Heads:
    bias = context.optional(node, 3)
    if bias is None:
        return heads
    check_rank(context, node, heads.q, {4}, "its query")
    parts = (heads.q, heads.k, heads.v)
    sizes = [part.dim(2) * last_dim(context, node, part, "its heads") for part in parts]
    check_shape(context, node, bias, [sum(sizes)], "bias")

    def added(index: int) -> Value:
        own = _columns(context, bias, sum(sizes[:index]), sizes[index])
        shaped = context.call(_aten.reshape.default, own, [parts[index].dim(2), parts[index].dim(3)])
        return context.call(_aten.add.Tensor, parts[index], shaped)

    return Heads(q=added(0), k=heads.k, v=heads.v) if only_queries else Heads(q=added(0), k=added(1), v=added(2))


def _columns(context: ImportContext, x: Value, start: int, length: int) -> Value:
    return context.call(_aten.slice.Tensor, x, x.rank - 1, start, start + length)
