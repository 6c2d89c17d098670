"""Attention of ONNX (opset 23 and 24)."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.heads import Heads, merge_heads, no_cache, self_attention, split_heads, swap
from flexspec.ir.onnx.operators.rules import check_rank, only_attributes, outputs, positive_int
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten
_ATTRIBUTES = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}
_MASK, _PAST, _LENGTHS = 3, (4, 5), 6


@operator("", "Attention")
def onnx_attention(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Queries, keys and values [batch, heads, length, head_dim], or [batch, length, heads * head_dim]; the result as the queries."""
    only_attributes(context, node, _ATTRIBUTES)
    no_cache(context, node, *_PAST)
    if context.has_input(node, _LENGTHS):
        _check_lengths(context, node, context.input(node, _LENGTHS))
    rank = context.input(node, 0).rank
    heads = Heads(
        q=_by_heads(context, node, 0, "q_num_heads"),
        k=_by_heads(context, node, 1, "kv_num_heads"),
        v=_by_heads(context, node, 2, "kv_num_heads"),
    )
    scale = context.attribute(node, "scale", None)
    result = self_attention(
        context,
        node,
        heads,
        scale=None if scale is None else float(scale),
        causal=bool(context.attribute(node, "is_causal", 0)),
        mask=_mask(context, node),
        softcap=context.attribute(node, "softcap", 0.0),
    )
    return outputs(node, swap(context, result) if rank == 4 else merge_heads(context, result))


@operator("", "TensorScatter")
def tensor_scatter(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """New keys or values written into a cache: what they are alone, since the cache starts empty."""
    only_attributes(context, node, {"axis", "mode"})
    if context.attribute(node, "mode", "linear") != "linear":
        raise context.refusal(node, "its mode is not linear; a cache that is written in circles is not supported")
    update = context.input(node, 1)
    no_cache(context, node, 0)
    if not context.has_input(node, 0) or context.values[node.input[0]] is None or context.input(node, 0).is_token_free:
        raise context.refusal(node, "what it writes into is no cache that is an input of the graph")
    if context.has_input(node, 2) and context.known(node, context.input(node, 2)).any():
        raise context.refusal(node, "it writes behind the start of the cache")
    return [update]


def _by_heads(context: ImportContext, node: NodeProto, index: int, attribute: str) -> Value:
    x = context.input(node, index)
    name = ("its query", "its key", "its value")[index]
    check_rank(context, node, x, {3, 4}, name)
    if x.rank == 4:
        return swap(context, x)
    return split_heads(context, node, x, positive_int(context, node, attribute), name)


def _mask(context: ImportContext, node: NodeProto) -> Value | None:
    """What is added to the scores; a boolean mask is true where a key is seen."""
    given = context.optional(node, _MASK)
    if given is None or given.dtype != torch.bool:
        return given
    if not given.is_token_free:
        raise context.refusal(node, "its mask depends on the tokens, which is not supported")
    return context.derive(node, lambda shown: torch.zeros(shown.shape).masked_fill(~shown, float("-inf")), given)


def _check_lengths(context: ImportContext, node: NodeProto, lengths: Value) -> None:
    if not lengths.is_token_free or any(
        bool((given != trial.length).any()) for trial, given in zip(context.trials, lengths.trials, strict=True)
    ):
        raise context.refusal(node, "its nonpad_kv_seqlen is not the length of the sequences; this is not supported")
