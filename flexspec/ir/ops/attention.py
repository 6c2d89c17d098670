"""`flexspec::attention`: causal attention of whole sequences, as captured from a model without its cache."""

import torch
from torch import Tensor, fx

from flexspec.ir.graph import fake
from flexspec.ir.ops.library import define
from flexspec.ir.ops.partition_rules import columns, divides, operands, weights_of
from flexspec.ir.partition import Partitioning, sharded


def scaled_scores(q: Tensor, k: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Attention scores before masking, [..., heads, queries, keys], float32.

    Args:
        q: [..., queries, heads, head_dim].
        k: [..., keys, kv_heads, head_dim]; head h reads KV head h // (heads / kv_heads).
        scale: factor of the dot products.
        softcap: c in c * tanh(score / c), or None.
    """
    groups = q.shape[-2] // k.shape[-2]
    keys = k.float().repeat_interleave(groups, dim=-2)
    scores = torch.einsum("...qhd,...khd->...hqk", q.float(), keys) * scale
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def weighted_values(scores: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over keys, then the weighted sum of `v` [..., keys, kv_heads, head_dim]; [..., queries, heads, head_dim], float32.

    `sinks` [heads] is a further logit a head that takes probability and gives nothing.
    """
    heads = scores.shape[-3]
    if sinks is not None:
        sink = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    probs = torch.softmax(scores, dim=-1)[..., : v.shape[-3]]
    values = v.float().repeat_interleave(heads // v.shape[-2], dim=-2)
    return torch.einsum("...hqk,...khd->...qhd", probs, values)


def position_bias(slopes: Tensor | None, key_positions: Tensor) -> Tensor | float:
    """What ALiBi adds to scores [heads, queries, keys], float32 (Press et al., 2022): a head's slope times the key's position.

    It is not the distance to the query: softmax is blind to what all keys of a query share.

    Args:
        slopes: [heads], or None for nothing.
        key_positions: [queries, keys], or broadcast to it.
    """
    return 0.0 if slopes is None else slopes.float()[:, None, None] * key_positions


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    slopes: Tensor | None = None,
) -> Tensor:
    length = q.shape[-3]
    index = torch.arange(length, device=q.device)
    distance = index[:, None] - index[None, :]
    visible = distance >= 0
    if window is not None:
        visible = visible & (distance < window)
    scores = scaled_scores(q, k, scale, softcap) + position_bias(slopes, index)
    return weighted_values(scores.masked_fill(~visible, float("-inf")), v, sinks).to(q.dtype).contiguous()


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _partitionings(node: fx.Node, units: int) -> list[Partitioning]:
    """By KV heads, each with the query heads that read it, which may be several to a device."""
    q, k, v = operands(node)[:3]
    per_head = weights_of(node)  # sinks, slopes
    if (
        fake(q).dim() != 3
        or len(operands(node)) != 3 + len(per_head)
        or not divides(units, fake(q).shape[1], fake(k).shape[1], fake(v).shape[1])
    ):
        return []
    return [columns(node, units, inputs=(sharded(units),) * 3, weights=(0,) * len(per_head))]


# q: [..., tokens, heads, head_dim]; k, v: [..., tokens, kv_heads, head_dim]; result as q. A token sees itself and the
# tokens before it, of those the last `window` if given. sinks, slopes: [heads].
ATTENTION = define(
    "attention(Tensor q, Tensor k, Tensor v, float scale, int? window, float? softcap, Tensor? sinks, Tensor? slopes=None) -> Tensor",
    reference=_reference,
    fake=_fake,
    partitionings=_partitionings,
)
