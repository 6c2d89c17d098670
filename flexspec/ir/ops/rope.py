"""`flexspec::rope`: rotary position embedding (Su et al., 2021), of the two halves of a head or of adjacent dims."""

import torch
from torch import Tensor, fx

from flexspec.ir.graph import fake
from flexspec.ir.ops.library import define
from flexspec.ir.ops.partition_rules import columns, divides
from flexspec.ir.partition import REPLICATED, Partitioning, sharded


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first `rotary_dim` dims of each head; those past it pass through.

    Args:
        x: [..., tokens, heads, head_dim].
        cos: [..., tokens, rotary_dim]; columns i and i + rotary_dim / 2 are those of pair i.
        sin: likewise.
        interleaved: pair i is the dims 2 i and 2 i + 1, and not i and i + rotary_dim / 2.
    """
    rotary_dim = cos.shape[-1]
    turned, rest = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    first, second = turned.reshape(*turned.shape[:-1], -1, 2).unbind(-1) if interleaved else turned.chunk(2, dim=-1)
    # [..., tokens, 1, pairs]
    cos_first, cos_second = cos.float().unsqueeze(-2).chunk(2, dim=-1)
    sin_first, sin_second = sin.float().unsqueeze(-2).chunk(2, dim=-1)
    new = first * cos_first - second * sin_first, second * cos_second + first * sin_second
    result = torch.stack(new, dim=-1).flatten(-2) if interleaved else torch.cat(new, dim=-1)
    return torch.cat([result.to(x.dtype), rest], dim=-1)


def _fake(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    return x.new_empty(x.shape)


def _partitionings(node: fx.Node, units: int) -> list[Partitioning]:
    """By heads: all are turned by the same angles."""
    if not divides(units, fake(node).shape[1]):
        return []
    return [columns(node, units, inputs=(sharded(units), REPLICATED, REPLICATED), weights=())]


# x: [tokens, heads, head_dim]; cos, sin: [tokens, rotary_dim]; result as x.
ROPE = define(
    "rope(Tensor x, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor",
    reference=rotate,
    fake=_fake,
    partitionings=_partitionings,
)
