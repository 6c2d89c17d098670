"""Recognition of the rotary embedding written half by half, as GPT-OSS has it, with tables of half a head's width."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.ir.ops import ROPE
from flexspec.passes.halves import whole_of_halves
from flexspec.passes.match import either_order, is_call

_aten = torch.ops.aten


def recognise_rope_of_halves(model: ModelGraph) -> tuple[int, int]:
    """cat(a * cos - b * sin, b * cos + a * sin), with a and b the halves of each head → `flexspec::rope`.

    Returns:
        Matches, and how many concatenations of such a difference and a sum of a head's halves there are.
    """
    joined = [node for node in model.nodes(_aten.cat.default) if _parts(node) is not None]
    tables: dict[fx.Node, fx.Node] = {}
    matches = 0
    for node in joined:
        found = _match(node)
        if found is None:
            continue
        x, *halves = found
        for table in map(_source, halves):
            if table not in tables:
                tables[table] = _doubled(model, table)
        rope = model.emit(ROPE, (x, *(tables[_source(table)] for table in halves), False), before=node)
        node.replace_all_uses_with(rope)
        matches += 1
    model.finish()
    return matches, len(joined)


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    parts: Any = node.args[0]
    if len(parts) != 2 or not is_call(parts[0], _aten.sub.Tensor) or not is_call(parts[1], _aten.add.Tensor) or fake(node).dim() != 3:
        return None
    if node.args[1:] not in ((-1,), (2,)):
        return None
    products = [either_order(one, _aten.mul.Tensor) for one in parts[0].args[:2]]
    of_halves = any(whole_of_halves(first, second) for first, _ in products[0] for second, _ in products[1])
    return (parts[0], parts[1]) if of_halves else None


def _match(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """The value whose halves are turned, and the tables of cosines and sines."""
    parts = _parts(node)
    assert parts is not None
    difference, total = parts
    if len(difference.args) != 2 or difference.kwargs or total.kwargs:
        return None
    for first, cos in either_order(difference.args[0], _aten.mul.Tensor):
        for second, sin in either_order(difference.args[1], _aten.mul.Tensor):
            x = whole_of_halves(first, second)
            if x is not None and _is_table(cos, first) and _is_table(sin, first) and _is_sum(total, second, cos, first, sin):
                return x, cos, sin
    return None


def _is_sum(node: fx.Node, second: Any, cos: Any, first: Any, sin: Any) -> bool:
    """second * cos + first * sin"""
    return any(
        (second, cos) in either_order(a, _aten.mul.Tensor) and (first, sin) in either_order(b, _aten.mul.Tensor)
        for a, b in either_order(node, _aten.add.Tensor)
    )


def _is_table(node: Any, half: Any) -> bool:
    """[tokens, 1, half a head]"""
    return is_tensor(node) and fake(half).dim() == 3 and list(fake(node).shape[1:]) == [1, fake(half).shape[-1]]


def _source(table: fx.Node) -> fx.Node:
    """What a layer gave a dim for the heads: that is the same for all layers."""
    source = table.args[0] if is_call(table, _aten.unsqueeze.default) and table.args[1] == 1 else table
    assert isinstance(source, fx.Node)
    return source


def _doubled(model: ModelGraph, table: fx.Node) -> fx.Node:
    """[tokens, head]: the table's columns twice."""
    if fake(table).dim() == 2:
        return model.emit(_aten.cat.default, ([table, table], 1), before=table.next)
    flat = model.emit(_aten.reshape.default, (table, [-1, int(fake(table).shape[-1])]), before=table.next)
    return model.emit(_aten.cat.default, ([flat, flat], 1), before=flat.next)
