"""Linears that stand for several become one linear each, whatever takes their results apart: devices divide them one by one.

Queries, keys and values follow each other in GPT-2's, take turns by head in GPT-NeoX's and BLOOM's, and by KV head, several queries to
each, in newer Falcons'.
"""

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_MOVES = {
    _aten.reshape.default,
    _aten.unsqueeze.default,
    _aten.permute.default,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.chunk.default,
    operator.getitem,
}
_ROWS = 2
"""Of a value that is numbered to see where its columns go; two tell whether rows stay apart."""


class Part(NamedTuple):
    """Rows of a weight: `length` of them from `start` on, and as many every further `step`."""

    start: int
    length: int
    step: int


def split_linears(model: ModelGraph) -> int:
    """Parts of the columns of linear(x) → linears of x with those rows of the weight, which are views if they follow each other.

    `fuse_linears` puts those together again that one device keeps.

    Returns:
        How many linears were split.
    """
    matches = 0
    for node in model.nodes(_aten.linear.default):
        if not all(map(is_parameter, filter(None, node.args[1:]))):
            continue
        width = int(fake(node).shape[-1])
        columns = _columns(node, width)
        if not _tile(set(columns.values()), width):
            continue
        parts = {own: _part(own, width) for own in sorted(set(columns.values()))}
        if None in parts.values():
            continue
        linears = {own: _linear(model, node, part) for own, part in parts.items() if part is not None}
        for leaf, own in columns.items():
            sizes = [-1, *map(int, fake(leaf).shape[1:])]
            value = linears[own]
            leaf.replace_all_uses_with(value if len(sizes) == 2 else model.emit(_aten.reshape.default, (value, sizes), before=node))
        matches += 1
    model.finish()
    return matches


def _linear(model: ModelGraph, node: fx.Node, part: Part) -> fx.Node:
    x, *operands = node.args
    rows = [None if one is None else _rows(model, one, part, node) for one in operands]  # type: ignore[arg-type]
    return model.emit(_aten.linear.default, (x, *rows), before=node)


def _rows(model: ModelGraph, weight: fx.Node, part: Part, before: fx.Node) -> fx.Node:
    value = model.parameter(weight)
    if part.step == value.shape[0]:
        return model.part_of_parameter(weight, 0, part.start, part.length, before)
    every = value.view(-1, part.step, *value.shape[1:])
    rows = every.narrow(1, part.start, part.length).flatten(0, 1)
    return model.add_parameter(f"{weight.target}_{part.start}", rows, before, ("rows", *part, model.origin(weight)))


def _tile(parts: set[tuple[int, ...]], width: int) -> bool:
    """Whether there are several parts, which make up the whole."""
    return len(parts) > 1 and sorted(column for part in parts for column in part) == list(range(width))


def _part(columns: tuple[int, ...], width: int) -> Part | None:
    """A part that is so many columns, as many of which follow each other at even distances; None if it is none."""
    length = next((place for place, column in enumerate(columns) if column != columns[0] + place), len(columns))
    step = width if length == len(columns) else columns[length] - columns[0]
    part = Part(columns[0], length, step)
    if step <= 0 or width % step or part.start + length > step:
        return None
    return part if columns == tuple(first + place for first in range(part.start, width, step) for place in range(length)) else None


def _columns(node: fx.Node, width: int) -> dict[fx.Node, tuple[int, ...]]:
    """Which columns of a linear's result each value consists of that is made of it by moves, and read by something else."""
    values: dict[fx.Node, Any] = {node: torch.arange(_ROWS * width).view(_ROWS, width)}
    found: dict[fx.Node, tuple[int, ...]] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        moved = {user: _moved(user, values[one], width) for user in one.users}
        for user, value in moved.items():
            if value is not None:
                values[user] = value
                waiting.append(user)
        if is_tensor(one) and None in moved.values():
            found[one] = tuple(values[one][0].flatten().tolist())
    return found


def _moved(node: fx.Node, source: Any, width: int) -> Any:
    """What a move makes of rows of `width` numbers in ascending order; None if it is none, or does not keep to rows."""
    if node.target not in _MOVES or len(node.all_input_nodes) != 1 or node.kwargs:
        return None
    assert callable(node.target)
    value = node.target(source, *node.args[1:])
    return value if all(_keeps_rows(one, width) for one in ([value] if isinstance(value, Tensor) else value)) else None


def _keeps_rows(value: Tensor, width: int) -> bool:
    """Whether both rows consist of the same columns."""
    return value.dim() > 1 and value.shape[0] == _ROWS and bool((value[1] - value[0] == width).all())
