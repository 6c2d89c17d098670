"""Recognition of the rotary embedding in its half-rotation form."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, depends_on, fake
from flexspec.ir.ops import ATTENTION, ROPE
from flexspec.passes.match import either_order, is_call

_aten = torch.ops.aten


def recognise_rope(model: ModelGraph) -> tuple[int, int]:
    """x * cos + rotate_half(x) * sin → `flexspec::rope`.

    Returns:
        Matches, and how many are needed: both the queries and the keys of every attention that reads a cosine.
    """
    rotary = depends_on(model.graph, model.nodes(_aten.cos.default))
    expected = sum(node.args[k] in rotary and _is_sum(node.args[k]) for node in model.nodes(ATTENTION) for k in (0, 1))
    matches = 0
    for node in model.nodes(_aten.add.Tensor):
        found = _match(node)
        if found is None:
            continue
        x, cos, sin = found
        rope = model.emit(ROPE, (x, cos, sin), before=node)
        node.replace_all_uses_with(rope)
        matches += 1
    model.finish()
    return matches, expected


def _is_sum(node: Any) -> bool:
    return is_call(node, _aten.add.Tensor)


def _match(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    for straight, turned in either_order(node, _aten.add.Tensor):
        for x, cos in either_order(straight, _aten.mul.Tensor):
            for half, sin in either_order(turned, _aten.mul.Tensor):
                if _is_half_rotation(half, x) and _is_table(cos) and _is_table(sin):
                    return x, cos.args[0], sin.args[0]
    return None


def _is_table(node: Any) -> bool:
    """[tokens, 1, rotary_dim], from a [tokens, rotary_dim] table."""
    return is_call(node, _aten.unsqueeze.default) and node.args[1] == 1 and fake(node).dim() == 3


def _is_half_rotation(node: Any, x: Any) -> bool:
    """cat(-x[second half], x[first half]) over the last dim."""
    if not is_call(node, _aten.cat.default) or not isinstance(x, fx.Node):
        return False
    last = fake(node).dim() - 1
    if len(node.args[0]) != 2 or node.args[1] not in (-1, last):
        return False
    negated, first = node.args[0]
    half = int(fake(x).shape[-1]) // 2
    return is_call(negated, _aten.neg.default) and _is_slice(negated.args[0], x, last, half, None) and _is_slice(first, x, last, 0, half)


def _is_slice(node: Any, x: fx.Node, dim: int, start: int, end: int | None) -> bool:
    if not is_call(node, _aten.slice.Tensor) or node.args[0] is not x:
        return False
    _, at, begin, stop = (*node.args, None, None)[:4]
    reaches_end = stop is None or stop >= int(fake(x).shape[-1])
    return at in (dim, -1) and begin == start and (reaches_end if end is None else stop == end)
