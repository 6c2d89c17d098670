"""GroupQueryAttention of ONNX Runtime: causal, with its rotation and its cache inside."""

import itertools
from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.heads import Heads, merge_heads, no_cache, self_attention, split_heads
from flexspec.ir.onnx.operators.position_rows import rows_at, same_positions
from flexspec.ir.onnx.operators.rotary import rotate
from flexspec.ir.onnx.operators.rules import check_shape, last_dim, no_input, only_attributes, outputs, positive_int
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten
_ATTRIBUTES = {
    "causal",
    "do_rotary",
    "k_norm_epsilon",
    "k_quant_type",
    "kv_cache_bit_width",
    "kv_num_heads",
    "local_window_size",
    "num_heads",
    "q_norm_epsilon",
    "qk_norm_epsilon",
    "qk_output",
    "rotary_interleaved",
    "scale",
    "sliding_window_cache",
    "smooth_softmax",
    "softcap",
    "v_quant_type",
}
# Inputs by place.
_PAST = (3, 4)
_LENGTHS, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINKS = 5, 6, 7, 8, 9, 10, 11
_REFUSED = {12: "k_scale", 13: "v_scale", 16: "query_seqlens"}
_NORMS = {"q": 14, "k": 15}


@operator(MICROSOFT, "GroupQueryAttention")
def group_query_attention(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Packed queries, keys and values in input 0, or apart in 0 to 2; the cache falls away, rotation follows the position input."""
    only_attributes(context, node, _ATTRIBUTES)
    for index, name in _REFUSED.items():
        no_input(context, node, index, name)
    for name in ("k_quant_type", "v_quant_type"):
        if context.attribute(node, name, "NONE") not in ("NONE", ""):
            raise context.refusal(node, f"its cache is quantised ({name}), which changes what it computes; export it without")
    no_cache(context, node, *_PAST)
    _check_lengths(context, node)
    heads = _rotated(context, node, _normed(context, node, _heads(context, node)))
    window = context.attribute(node, "local_window_size", -1)
    result = self_attention(
        context,
        node,
        heads,
        scale=context.attribute(node, "scale", 0.0) or None,
        causal=bool(context.attribute(node, "causal", 1)),
        mask=context.optional(node, _BIAS),
        window=window if window > 0 else None,
        softcap=context.attribute(node, "softcap", 0.0),
        sinks=_sinks(context, node, heads.q.dim(2)),
    )
    return outputs(node, merge_heads(context, result))


def _heads(context: ImportContext, node: NodeProto) -> Heads:
    many, few = positive_int(context, node, "num_heads"), positive_int(context, node, "kv_num_heads")
    q = context.input(node, 0)
    if context.has_input(node, 1):
        k, v = context.input(node, 1), context.input(node, 2)
        return Heads(
            q=split_heads(context, node, q, many, "its query"),
            k=split_heads(context, node, k, few, "its key"),
            v=split_heads(context, node, v, few, "its value"),
        )
    packed = split_heads(context, node, q, many + 2 * few, "its packed query, key and value")
    ends = (0, many, many + few, many + 2 * few)
    q, k, v = (context.call(_aten.slice.Tensor, packed, 2, start, end) for start, end in itertools.pairwise(ends))
    return Heads(q=q, k=k, v=v)


def _normed(context: ImportContext, node: NodeProto, heads: Heads) -> Heads:
    """RMS normalisation of each head of queries and keys, as Qwen3 has it."""
    default = context.attribute(node, "qk_norm_epsilon", 1e-6)

    def norm(x: Value, which: str) -> Value:
        weight = context.optional(node, _NORMS[which])
        if weight is None:
            return x
        size = last_dim(context, node, x, "its heads")
        check_shape(context, node, weight, [size], f"{which}_norm_weight")
        return context.call(_aten.rms_norm.default, x, [size], weight, context.attribute(node, f"{which}_norm_epsilon", default))

    return Heads(q=norm(heads.q, "q"), k=norm(heads.k, "k"), v=heads.v)


def _rotated(context: ImportContext, node: NodeProto, heads: Heads) -> Heads:
    if context.has_input(node, _POSITIONS):
        same_positions(context, node, context.input(node, _POSITIONS))
    if not context.attribute(node, "do_rotary", 0):
        return heads
    cos, sin = (rows_at(context, node, context.input(node, index)) for index in (_COS, _SIN))
    interleaved = bool(context.attribute(node, "rotary_interleaved", 0))
    q, k = (rotate(context, node, x, cos, sin, interleaved=interleaved) for x in (heads.q, heads.k))
    return Heads(q=q, k=k, v=heads.v)


def _sinks(context: ImportContext, node: NodeProto, heads: int) -> Value | None:
    sinks = context.optional(node, _SINKS)
    if sinks is not None:
        check_shape(context, node, sinks, [heads], "head_sink")
        return sinks
    return context.constant(torch.zeros(heads)) if context.attribute(node, "smooth_softmax", 0) == 1 else None


def _check_lengths(context: ImportContext, node: NodeProto) -> None:
    """The operator hides what lies past the lengths that it is given: without padding and cache these must be the sequences' own."""
    for index, less, name in ((_LENGTHS, 1, "seqlens_k"), (_TOTAL, 0, "total_sequence_length")):
        value = context.optional(node, index)
        if value is None:
            continue
        if not value.is_token_free or any(
            bool((given != trial.length - less).any()) for trial, given in zip(context.trials, value.trials, strict=True)
        ):
            raise context.refusal(node, f"its {name} is not the length of the sequences{' less 1' if less else ''}; this is not supported")
