"""Linears whose weight the target lays out once, at compile time."""

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import PACKED_LINEAR
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten


def pack_linears(model: ModelGraph) -> tuple[int, int]:
    """`aten.linear` with a parameter as its weight → `flexspec::packed_linear`.

    Returns:
        Matches, and how many linears there were.
    """
    linears = model.nodes(_aten.linear.default)
    matches = 0
    for node in linears:
        x, weight, bias = (*node.args, None)[:3]
        if not is_parameter(weight):
            continue
        assert isinstance(weight, fx.Node)
        _make_row_major(model, weight)
        packed = model.emit(PACKED_LINEAR, (x, weight, bias), before=node)
        node.replace_all_uses_with(packed)
        model.graph.erase_node(node)
        matches += 1
    model.finish()
    return matches, len(linears)


def _make_row_major(model: ModelGraph, weight: fx.Node) -> None:
    """A weight that the model keeps transposed is laid out anew; parts of others are left to whoever packs them."""
    value = model.parameter(weight)
    if value.t().is_contiguous() and not value.is_contiguous():
        setattr(model.module, str(weight.target), value.contiguous())
