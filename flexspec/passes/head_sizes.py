"""Attention whose keys and values differ in size (DeepSeek): the smaller ones get zeros, so that a cache holds both alike."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION

_aten = torch.ops.aten


def equal_head_sizes(model: ModelGraph) -> int:
    """attention(q, k, v) → attention with v, or q and k, of more dims, all 0; their products add nothing, and the result loses them.

    Returns:
        Matches.
    """
    matches = 0
    for node in model.nodes(ATTENTION):
        q, k, v, *rest = node.args
        key_dim, value_dim = (int(fake(one).shape[-1]) for one in (k, v))
        if key_dim == value_dim:
            continue
        size = max(key_dim, value_dim)
        operands = [_padded(model, one, size, node) for one in (q, k, v)]
        wide = model.emit(ATTENTION, (*operands, *rest), before=node)
        result = wide if value_dim == size else model.emit(_aten.slice.Tensor, (wide, 2, 0, value_dim), before=node)
        node.replace_all_uses_with(result)
        model.graph.erase_node(node)
        matches += 1
    model.finish()
    return matches


def _padded(model: ModelGraph, node: Any, size: int, before: fx.Node) -> fx.Node:
    """Zeros are some of the value's own dims times 0: they are as many as it has tokens and heads."""
    while (missing := size - (width := int(fake(node).shape[-1]))) > 0:
        some = model.emit(_aten.slice.Tensor, (node, 2, 0, min(missing, width)), before=before)
        zeros = model.emit(_aten.mul.Tensor, (some, 0.0), before=before)
        node = model.emit(_aten.cat.default, ([node, zeros], 2), before=before)
    padded: fx.Node = node
    return padded
