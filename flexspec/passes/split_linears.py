"""Linears that stand for several, whose result is split at once, become one linear each: they are divided over devices one by one."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_SPLITS = {_aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default}


def split_linears(model: ModelGraph) -> int:
    """split(linear(x)) → linears of x with parts of the weight, which are views and cost nothing.

    `fuse_linears` puts those together again that one device keeps.

    Returns:
        How many linears were split.
    """
    matches = 0
    for node in model.nodes(_aten.linear.default):
        parts = _parts(node)
        ranges = sorted({columns for _, columns in parts})
        if not _tile(ranges, int(fake(node).shape[-1])) or not all(map(is_parameter, filter(None, node.args[1:]))):
            continue
        x, weight, bias = (*node.args, None)[:3]
        linears: dict[tuple[int, int], fx.Node] = {}
        for start, end in ranges:
            operands = [None if one is None else model.part_of_parameter(one, 0, start, end - start, node) for one in (weight, bias)]  # type: ignore[arg-type]
            linears[start, end] = model.emit(_aten.linear.default, (x, *operands), before=node)
        for part, columns in parts:
            part.replace_all_uses_with(linears[columns])
        matches += 1
    model.finish()
    return matches


def _tile(ranges: Sequence[tuple[int, int]], width: int) -> bool:
    """Whether there are several column ranges, which make up the whole."""
    ends = [0, *(end for _, end in ranges)]
    return len(ranges) > 1 and ends[-1] == width and [start for start, _ in ranges] == ends[:-1]


def _parts(node: fx.Node) -> list[tuple[fx.Node, tuple[int, int]]]:
    """Values that are column ranges of a linear's result, with the first column and the one after the last; [] if it has other uses."""
    found: list[tuple[fx.Node, tuple[int, int]]] = []
    for user in node.users:
        args: tuple[Any, ...] = user.args
        dim = fake(node).dim() - 1
        if user.target in _SPLITS and len(args) > 2 and args[2] in (dim, -1):
            sizes = [int(one.shape[-1]) for one in user.meta["val"]]
            for item in user.users:
                if item.target is not operator.getitem:
                    return []
                place = int(item.args[1])  # type: ignore[arg-type]
                found.append((item, (sum(sizes[:place]), sum(sizes[: place + 1]))))
        elif user.target == _aten.slice.Tensor and args[1] in (dim, -1) and (args[4:] or (1,)) == (1,):
            start, end, _ = slice(*args[2:4]).indices(int(fake(node).shape[-1]))
            found.append((user, (start, end)))
        else:
            return []
    return found
