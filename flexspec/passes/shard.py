"""Tensor parallelism: a graph becomes one rank's share of it, with parallel operators where layouts differ."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, fake, infer, is_tensor
from flexspec.ir.ops import COMBINE, REDUCE, REPARTITION, ROPE
from flexspec.ir.partition import PARTIAL, REPLICATED, Layout, Partitioning, Placing, shares

_aten = torch.ops.aten
_ONCE = -1


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of a tensor-parallel group's work.

    Attributes:
        rank: its place in the group.
        size: ranks of the group.
        group: what functional collectives know the group by.
    """

    rank: int
    size: int
    group: str


ALONE = Share(rank=0, size=1, group="")
"""Of a rank that has no group."""


def shard(model: ModelGraph, chosen: Mapping[fx.Node, Partitioning], share: Share) -> int:
    """Turn the graph, in place, into what one rank computes.

    Parameters become views of the rank's part of them. A value is brought into another layout once, however many operators want it there.

    Args:
        model: the flat recognised graph.
        chosen: how operators are divided; all ranks have the whole of what others give.
        share: the rank's.

    Returns:
        Parallel operators that were inserted.

    Raises:
        UsageError: if a partitioning can't be had by this many ranks.
    """
    sharder = _Sharder(model, share)
    output = model.graph.output_node()
    for node in list(model.graph.nodes):
        if node in chosen:
            sharder.divide(node, chosen[node])
        elif node.op == "call_function":
            sharder.keep_whole(node)
    output.args = fx.node.map_arg(output.args, lambda value: sharder.converted(value, REPLICATED, output))
    model.facts = replace(model.facts, patterns={})
    model.finish()
    return sharder.inserted


class _Sharder:
    """Goes through the nodes in graph order; `layouts` says where a node's new value is, if not whole on every rank."""

    def __init__(self, model: ModelGraph, share: Share) -> None:
        self.model, self.share = model, share
        self.layouts: dict[fx.Node, Layout] = {}
        self.moved: dict[tuple[fx.Node, Layout], fx.Node] = {}
        self.parts: dict[tuple[Any, ...], fx.Node] = {}
        self.inserted = 0

    def divide(self, node: fx.Node, how: Partitioning) -> None:
        """Give an operator its operands as its partitioning wants them."""
        units = self._units(node, how)
        inputs, weights = iter(how.inputs), iter(how.weights)

        def operand(arg: fx.Node) -> fx.Node | None:
            if arg.op != "get_attr":
                return self.converted(arg, next(inputs), node)
            dim = next(weights)
            if dim == _ONCE:
                return arg if self.share.rank == 0 else None
            return arg if dim is None else self._part(arg, dim, units, node)

        node.args = fx.node.map_arg(node.args, operand)
        if how.result.placing is Placing.SHARDED:
            self._shrink(node, how.result)
        self.layouts[node] = how.result
        infer(node, self.model.fake_mode)

    def keep_whole(self, node: fx.Node) -> None:
        """Give an operator whole operands."""
        node.args = fx.node.map_arg(node.args, lambda arg: self.converted(arg, REPLICATED, node))

    def converted(self, value: fx.Node, wanted: Layout, before: fx.Node) -> fx.Node:
        """A value in the layout that is wanted before a node."""
        layout = self.layouts.get(value, REPLICATED)
        if self._are_alike(layout, wanted):
            return value
        if wanted == PARTIAL or not is_tensor(value):
            raise UsageError(
                f"the partition wants {value.name} {wanted.placing} for {before.name} ({before.target}) where it is {layout.placing}, "
                "and there is no way from one to the other: make a plan for this model"
            )
        if (value, wanted) not in self.moved:
            self.moved[value, wanted] = self._move(value, layout, wanted, before)
        return self.moved[value, wanted]

    def _are_alike(self, layout: Layout, wanted: Layout) -> bool:
        """Whether every rank has the same of a value in both layouts."""
        if not (layout.units and wanted.units):
            return layout == wanted
        counts = (shares(one.units, self.share.size) for one in (layout, wanted))
        return all(has * wanted.units == wants * layout.units for has, wants in zip(*counts, strict=True))

    def _move(self, value: fx.Node, layout: Layout, wanted: Layout, before: fx.Node) -> fx.Node:
        if REPLICATED not in (layout, wanted):
            return self.converted(self.converted(value, REPLICATED, before), wanted, before)
        if value.target == ROPE:
            # Heads move before they are turned: attention turns them itself.
            x, *angles = value.args
            assert isinstance(x, fx.Node)
            moved = self.model.emit(ROPE, (self.converted(x, wanted, before), *angles), before=before)
            self.layouts[moved] = wanted
            return moved
        rank, size, group = self.share.rank, self.share.size, self.share.group
        width = int(fake(value).shape[1])
        if layout.placing is Placing.PARTIAL:
            moved = self._emit(REDUCE, (value, size, group), before)
        elif layout.placing is Placing.SHARDED:
            of_unit = width // shares(layout.units, size)[rank]
            moved = self._emit(COMBINE, (value, [of_unit * count for count in shares(layout.units, size)], group), before)
        else:
            moved = self._emit(REPARTITION, (value, *_range(width, wanted.units, rank, size)), before)
        self.layouts[moved] = wanted
        return moved

    def _emit(self, target: Any, args: tuple[Any, ...], before: fx.Node) -> fx.Node:
        self.inserted += 1
        return self.model.emit(target, args, before=before)

    def _units(self, node: fx.Node, how: Partitioning) -> int:
        """Into how many units the operator's divided weights fall."""
        units = how.units
        if units and units < self.share.size:
            raise UsageError(
                f"tp={self.share.size} is not allowed: {node.name} is divided by {units} ({how.name}); give at most {units} ranks"
            )
        return units

    def _part(self, weight: fx.Node, dim: int, units: int, before: fx.Node) -> fx.Node:
        """This rank's part of a parameter, a view of it."""
        start, length = _range(int(fake(weight).shape[dim]), units, self.share.rank, self.share.size)
        key = (str(weight.target), dim, start, length)
        if key not in self.parts:
            self.parts[key] = self.model.part_of_parameter(weight, dim, start, length, before)
        return self.parts[key]

    def _shrink(self, node: fx.Node, result: Layout) -> None:
        """Operators that name the sizes of their results name this rank's."""
        if node.target == _aten.reshape.default:
            sizes = [*node.args[1]]  # type: ignore[misc]
            sizes[1] = _range(int(sizes[1]), result.units, self.share.rank, self.share.size)[1]
            node.update_arg(1, sizes)


def _range(whole: int, units: int, rank: int, size: int) -> tuple[int, int]:
    """The first of a rank's columns, and how many it has."""
    assert whole % units == 0, f"{whole} columns don't fall into {units} units"
    counts = shares(units, size)
    return sum(counts[:rank]) * (whole // units), counts[rank] * (whole // units)
