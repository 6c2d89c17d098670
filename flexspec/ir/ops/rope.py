"""`flexspec::rope`: rotary position embedding in its half-rotation form (Su et al., 2021)."""

import torch
from torch import Tensor, fx

from flexspec.ir.graph import fake
from flexspec.ir.ops.library import define
from flexspec.ir.ops.partition_rules import columns, divides
from flexspec.ir.partition import REPLICATED, Partitioning, sharded


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [..., tokens, heads, head_dim] by `cos`, `sin` [..., tokens, rotary_dim]; dims past rotary_dim pass through."""
    rotary_dim = cos.shape[-1]
    turned, rest = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    first, second = turned.chunk(2, dim=-1)
    half = torch.cat([-second, first], dim=-1)
    result = turned * cos.float().unsqueeze(-2) + half * sin.float().unsqueeze(-2)
    return torch.cat([result.to(x.dtype), rest], dim=-1)


def _fake(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _partitionings(node: fx.Node, units: int) -> list[Partitioning]:
    """By heads: all are turned by the same angles."""
    if not divides(units, fake(node).shape[1]):
        return []
    return [columns(node, units, inputs=(sharded(units), REPLICATED, REPLICATED), weights=())]


# x: [tokens, heads, head_dim]; cos, sin: [tokens, rotary_dim]; result as x.
ROPE = define("rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", reference=rotate, fake=_fake, partitionings=_partitionings)
