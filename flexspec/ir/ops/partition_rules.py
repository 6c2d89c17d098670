"""What the declarations of how operators can be divided are made of."""

from collections.abc import Callable

import torch
from torch import fx

from flexspec.ir.graph import fake, is_tensor
from flexspec.ir.partition import PARTIAL, REPLICATED, Layout, Partitioning, sharded

PartitionRule = Callable[[fx.Node, int], list[Partitioning]]
"""From a call, and how many equal units its columns or heads fall into that stay whole, to the ways to divide it; [] if there are none."""


def operands(node: fx.Node) -> list[fx.Node]:
    """Nodes among a call's positional arguments in their order, those in lists included, as often as they occur."""
    found: list[fx.Node] = []

    def keep(arg: fx.Node) -> fx.Node:
        found.append(arg)
        return arg

    fx.node.map_arg(node.args, keep)
    return found


def values_of(node: fx.Node) -> list[fx.Node]:
    """The operands that are no parameters."""
    return [arg for arg in operands(node) if arg.op != "get_attr"]


def weights_of(node: fx.Node) -> list[fx.Node]:
    """The operands that are parameters."""
    return [arg for arg in operands(node) if arg.op == "get_attr"]


def divides(units: int, *columns: int | torch.SymInt) -> bool:
    """Whether numbers of columns fall into so many units."""
    return all(isinstance(one, int) and one % units == 0 for one in columns)


def replicated(node: fx.Node) -> Partitioning:
    """Every device does all of it."""
    inputs, weights = (REPLICATED,) * len(values_of(node)), (None,) * len(weights_of(node))
    return Partitioning(name="replicated", inputs=inputs, weights=weights, result=REPLICATED)


def partial(node: fx.Node) -> Partitioning:
    """A linear map of values of which every device has a summand."""
    inputs, weights = (PARTIAL,) * len(values_of(node)), (None,) * len(weights_of(node))
    return Partitioning(name="partial", inputs=inputs, weights=weights, result=PARTIAL)


def columns(node: fx.Node, units: int, *, inputs: tuple[Layout, ...], weights: tuple[int | None, ...]) -> Partitioning:
    """One whose result is divided."""
    value = node.meta["val"]
    kind = "columns" if isinstance(value, torch.Tensor) and value.dim() == 2 else "heads"
    return Partitioning(name=f"{kind}:{units}", inputs=inputs, weights=weights, result=sharded(units))


def aligned(node: fx.Node, units: int) -> list[Partitioning]:
    """Each device computes its columns, or heads, from the same ones of every operand; operands broadcast as in PyTorch."""
    if not is_tensor(node) or fake(node).dim() < 2 or not divides(units, fake(node).shape[1]):
        return []
    values, weights = [_divided_dim(node, arg) for arg in values_of(node)], [_divided_dim(node, arg) for arg in weights_of(node)]
    # What is no parameter can only be divided along dim 1.
    if not any(values) or 0 in values:
        return []
    return [columns(node, units, inputs=tuple(sharded(units) if dim else REPLICATED for dim in values), weights=tuple(weights))]


def heads_apart(node: fx.Node, units: int) -> list[Partitioning]:
    """What does the same to the values [tokens, heads, size] of each head, with whole parameters."""
    values = values_of(node)
    if any(fake(value).dim() != 3 or not divides(units, fake(value).shape[1]) for value in values):
        return []
    return [columns(node, units, inputs=(sharded(units),) * len(values), weights=(None,) * len(weights_of(node)))]


def _divided_dim(node: fx.Node, arg: fx.Node) -> int | None:
    """The dim of an operand that is divided when the result is, along dim 1; None if the operand is needed whole."""
    if not is_tensor(arg):
        return None
    dim = 1 - (fake(node).dim() - fake(arg).dim())
    return None if dim < 0 or fake(arg).shape[dim] == 1 else dim
