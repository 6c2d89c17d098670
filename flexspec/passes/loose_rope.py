"""Rotary embeddings that attention can't do on its way, written out again: something lies between, or queries and keys differ in it."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION, ROPE
from flexspec.passes.match import is_call

_aten = torch.ops.aten


def write_out_loose_rope(model: ModelGraph) -> int:
    """`flexspec::rope` that is not that of an attention's queries and keys both, alike → x * cos + turned(x) * sin.

    Returns:
        Matches.
    """
    kept: set[fx.Node] = set()
    for node in model.nodes(ATTENTION):
        q, k = node.args[:2]
        if is_call(q, ROPE) and is_call(k, ROPE) and q.args[1:] == k.args[1:]:  # type: ignore[union-attr]
            kept |= {one for one in (q, k) if isinstance(one, fx.Node) and len(one.users) == 1}
    loose = [node for node in model.nodes(ROPE) if node not in kept]
    for node in loose:
        node.replace_all_uses_with(_written_out(model, node))
        model.graph.erase_node(node)
    model.finish()
    return len(loose)


def _written_out(model: ModelGraph, node: fx.Node) -> fx.Node:
    def emit(target: Any, *args: Any) -> fx.Node:
        return model.emit(target, args, before=node)

    x, cos, sin, interleaved = (*node.args, False)[:4]
    size, width = int(fake(x).shape[-1]), int(fake(cos).shape[-1])
    half = width // 2
    turned = x if width == size else emit(_aten.slice.Tensor, x, 2, 0, width)
    if interleaved:
        first, second = (emit(_aten.slice.Tensor, turned, 2, start, width, 2) for start in (0, 1))
    else:
        first, second = (emit(_aten.slice.Tensor, turned, 2, start, start + half) for start in (0, half))
    tables = [emit(_aten.unsqueeze.default, one, 1) for one in (cos, sin)]  # [tokens, 1, width]
    (cos_1, cos_2), (sin_1, sin_2) = ([emit(_aten.slice.Tensor, one, 2, at, at + half) for at in (0, half)] for one in tables)
    new = [
        emit(_aten.sub.Tensor, emit(_aten.mul.Tensor, first, cos_1), emit(_aten.mul.Tensor, second, sin_1)),
        emit(_aten.add.Tensor, emit(_aten.mul.Tensor, second, cos_2), emit(_aten.mul.Tensor, first, sin_2)),
    ]
    if interleaved:
        stacked = emit(_aten.stack.default, new, -1)
        joined = emit(_aten.flatten.using_ints, stacked, 2, 3)
    else:
        joined = emit(_aten.cat.default, new, 2)
    return joined if width == size else emit(_aten.cat.default, [joined, emit(_aten.slice.Tensor, x, 2, width, size)], 2)
