"""What the attention operators share: heads in and out, and causal attention with or without a mask, whose meaning is found out."""

from dataclasses import dataclass

import torch
from onnx import NodeProto

from flexspec.ir.onnx.attention import alike, attention, heads_of
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import permuted, reshaped
from flexspec.ir.onnx.mask import mask_meaning
from flexspec.ir.onnx.operators.rules import last_dim
from flexspec.ir.onnx.values import Value


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Operands of attention, each [batch, length, heads, head_dim]; queries may have a multiple of the others' heads."""

    q: Value
    k: Value
    v: Value


def split_heads(context: ImportContext, node: NodeProto, x: Value, heads: int, name: str) -> Value:
    """[batch, length, heads * head_dim] → [batch, length, heads, head_dim].

    Raises:
        UsageError: if the heads do not divide the columns.
    """
    width = last_dim(context, node, x, name)
    if x.rank != 3 or width % heads:
        raise context.refusal(node, f"{name} has shape {list(x.trials[0].shape)}; it must be [batch, length, a multiple of {heads} heads]")
    return reshaped(context, x, [[*one.shape[:-1], heads, width // heads] for one in x.trials])


def merge_heads(context: ImportContext, x: Value) -> Value:
    """[batch, length, heads, head_dim] → [batch, length, heads * head_dim]."""
    return reshaped(context, x, [[*one.shape[:-2], one.shape[-2:].numel()] for one in x.trials])


def swap(context: ImportContext, x: Value) -> Value:
    """[batch, length, heads, head_dim] ↔ [batch, heads, length, head_dim]."""
    return permuted(context, x, [0, 2, 1, 3])


def no_cache(context: ImportContext, node: NodeProto, *indices: int) -> None:
    """Past keys and values must be the graph's own inputs for them, which are empty; whatever else is refused.

    Raises:
        UsageError: if one is computed.
    """
    for index in indices:
        past = context.values.get(node.input[index]) if context.has_input(node, index) else None
        if past is not None and any(one.numel() for one in past.trials):
            raise context.refusal(node, f"its past {node.input[index]!r} is not an input of the graph, so it is no cache that starts empty")


def self_attention(
    context: ImportContext,
    node: NodeProto,
    heads: Heads,
    *,
    scale: float | None,
    causal: bool,
    mask: Value | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Value | None = None,
) -> Value:
    """Causal attention; [batch, length, heads, head_dim].

    Args:
        scale: factor of the dot products, None for 1 / sqrt(head_dim).
        causal: whether the operator itself hides later tokens.
        mask: what is added to the scores, [batch or 1, heads or 1, length, length] or fewer dims; its meaning is found out.
        window: how many tokens a token sees, itself included.
        softcap: c in c * tanh(score / c); 0 for none.
        sinks: [heads], a further logit a head.

    Raises:
        UsageError: if shapes do not fit, or the mask is not one of a decoder.
    """
    _check(context, node, heads)
    scale = last_dim(context, node, heads.q, "its query") ** -0.5 if scale is None else scale
    masks = [] if mask is None else [mask]
    if causal and mask is None:
        return attention(context, heads.q, heads.k, heads.v, scale=scale, window=window, softcap=softcap or None, sinks=sinks)
    if causal:
        masks.append(_causal_mask(context))
    meaning = mask_meaning(context, node, masks, heads=heads.q.dim(2))
    (q, q_scale), (k, k_scale), (v, v_scale) = (_own_heads(context, node, one, heads.q) for one in (heads.q, heads.k, heads.v))
    if v_scale != 1:
        raise context.refusal(node, "its values are scaled")
    k, v = alike(context, k, v)
    windows = [one for one in (window, meaning.window) if one is not None]
    window, scale = min(windows, default=None), scale * q_scale * k_scale
    return attention(context, q, k, v, scale=scale, window=window, softcap=softcap or None, sinks=sinks, slopes=meaning.slopes)


def _own_heads(context: ImportContext, node: NodeProto, x: Value, queries: Value) -> tuple[Value, float]:
    """Keys or values without the repetition that gives every query head its own, and their constant factor."""
    return heads_of(context, node, swap(context, x), swap(context, queries)) if x.shape[2] == queries.shape[2] else (x, 1.0)


def _causal_mask(context: ImportContext) -> Value:
    return context.each(lambda trial: torch.full((context.trials[trial].length,) * 2, float("-inf")).triu(1))


def _check(context: ImportContext, node: NodeProto, heads: Heads) -> None:
    shapes = {name: list(value.trials[0].shape) for name, value in (("query", heads.q), ("key", heads.k), ("value", heads.v))}
    said = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if any(value.rank != 4 for value in (heads.q, heads.k, heads.v)):
        raise context.refusal(node, f"its heads are {said}; all must be [batch, length, heads, head_dim]")
    (batch, length, many, size), keys, values = heads.q.shape, heads.k.shape, heads.v.shape
    if keys[:2] != [batch, length] or keys[:3] != values[:3] or keys[3] != size:
        raise context.refusal(node, f"its heads are {said}, which do not fit: only self-attention without a cache can be imported")
    if not all(isinstance(one, int) for one in (many, size, keys[2], values[3])):
        raise context.refusal(node, f"its heads are {said}; their number and size must be the same at all lengths")
    if heads.q.dim(2) % heads.k.dim(2):
        raise context.refusal(node, f"its {many} query heads are no multiple of its {keys[2]} key and value heads")
