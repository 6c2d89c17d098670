"""How any operator can be divided over devices: what the dialect operators declare beside their schemas, and ATen's here.

Only what is declared is ever divided: any other operator stays whole on every device, unless it is point-wise.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import fake, is_tensor
from flexspec.ir.ops.library import PARTITION_RULES
from flexspec.ir.ops.partition_rules import (
    PartitionRule,
    aligned,
    columns,
    divides,
    heads_apart,
    operands,
    partial,
    replicated,
    values_of,
    weights_of,
)
from flexspec.ir.partition import PARTIAL, REPLICATED, Partitioning, sharded

_aten = torch.ops.aten
_CUTS = (_aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default)


def partitionings(node: fx.Node, units: Sequence[int]) -> list[Partitioning]:
    """All ways to divide a call of the flat recognised graph, whose values are [tokens, columns] or [tokens, heads, size].

    Args:
        node: the call.
        units: numbers of equal parts, each of which stays whole on one device, that columns or heads may fall into.

    Returns:
        `replicated` first; of each of `units` that fits, `columns:…`, `rows:…` or `heads:…`; `partial` for a linear map of partial sums.
    """
    found = [replicated(node)]
    rule = _rule(node.target)
    if rule is not None and not _has_other_operands(node):
        found += [one for number in dict.fromkeys(units) for one in rule(node, number)]
    if _is_linear_map(node):
        found.append(partial(node))
    assert len({one.name for one in found}) == len(found), node
    return found


def _has_other_operands(node: fx.Node) -> bool:
    """Whether it reads anything by keyword, which partitionings say nothing of."""
    return len(node.all_input_nodes) > len(set(operands(node)))


def _rule(target: Any) -> PartitionRule | None:
    rule = PARTITION_RULES.get(target) or _ATEN.get(target)
    return aligned if rule is None and torch.Tag.pointwise in getattr(target, "tags", ()) else rule


def _linear(node: fx.Node, units: int) -> list[Partitioning]:
    """Megatron's two: each device has its columns of the result, or adds what follows from its columns of x (Shoeybi et al., 2019)."""
    x, weights = node.args[0], weights_of(node)
    if len(values_of(node)) != 1 or not weights or fake(x).dim() != 2:
        return []
    out_features, in_features = (int(dim) for dim in fake(weights[0]).shape)
    found = []
    if divides(units, out_features):
        found.append(columns(node, units, inputs=(REPLICATED,), weights=(0,) * len(weights)))
    if divides(units, in_features):
        found.append(Partitioning(name=f"rows:{units}", inputs=(sharded(units),), weights=(1, -1)[: len(weights)], result=PARTIAL))
    return found


def _embedding(node: fx.Node, units: int) -> list[Partitioning]:
    """Columns of the table."""
    if len(weights_of(node)) != 1 or node.args[1:] != tuple(values_of(node)) or not divides(units, fake(node).shape[1]):
        return []
    return [columns(node, units, inputs=(REPLICATED,), weights=(1,))]


def _reshape(node: fx.Node, units: int) -> list[Partitioning]:
    """Heads taken apart or put together: a unit is a contiguous part of a row before and after."""
    x, sizes = node.args[0], node.args[1]
    assert isinstance(sizes, list | tuple)
    before, after = fake(x).shape, fake(node).shape
    if len(before) < 2 or len(after) < 2 or before[0] != after[0] or sizes[1] == -1 or len(values_of(node)) != 1:
        return []
    return [columns(node, units, inputs=(sharded(units),), weights=())] if divides(units, before[1], after[1]) else []


def _layer_norm(node: fx.Node, units: int) -> list[Partitioning]:
    sizes = node.args[1]
    assert isinstance(sizes, list | tuple)
    return heads_apart(node, units) if len(sizes) == 1 else []


def _inside_heads(node: fx.Node, units: int) -> list[Partitioning]:
    """Cutting up, or joining, what each head has."""
    place = 2 if node.target in _CUTS else 1
    return heads_apart(node, units) if node.args[place : place + 1] in ((2,), (-1,)) else []


def _item(node: fx.Node, units: int) -> list[Partitioning]:
    """A part of what each head has."""
    if not is_tensor(node) or fake(node).dim() != 3 or not divides(units, fake(node).shape[1]):
        return []
    return [columns(node, units, inputs=(sharded(units),), weights=())]


_ATEN: dict[Any, PartitionRule] = {
    _aten.linear.default: _linear,
    _aten.embedding.default: _embedding,
    _aten.reshape.default: _reshape,
    _aten.layer_norm.default: _layer_norm,
    _aten.slice.Tensor: _inside_heads,
    _aten.cat.default: _inside_heads,
    operator.getitem: _item,
} | dict.fromkeys(_CUTS, _inside_heads)


def _is_linear_map(node: fx.Node) -> bool:
    """Whether a call of partial sums gives a partial sum."""
    values, weights = values_of(node), weights_of(node)
    if _has_other_operands(node) or not is_tensor(node) or not all(map(is_tensor, values)):
        return False
    if node.target in (_aten.add.Tensor, _aten.sub.Tensor):
        return len(values) == 2 and not weights
    if node.target in (_aten.mul.Tensor, _aten.div.Tensor):
        return values == [node.args[0]]
    return node.target in (_aten.neg.default, _aten.reshape.default) and len(values) == 1
