"""Fusion of linears that share an input: Q+K+V, gate+up."""

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.passes.manager import Recognised
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten


def fuse_linears(model: ModelGraph) -> Recognised:
    """Linears of one input become one linear with stacked weights, followed by slices.

    Returns:
        Fused linears, and how many there should be: as many as read a value with others, and as Q, K, V, gate and up in the module.
    """
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in model.nodes(_aten.linear.default):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if all(is_parameter(operand) for operand in node.args[1:] if operand is not None):
            groups.setdefault(source, []).append(node)
    shared = [group for group in groups.values() if len(group) > 1]
    for group in shared:
        _fuse(model, group)
    model.finish()
    fused = sum(map(len, shared))
    return Recognised(fused, max(fused, model.facts.patterns.get("shared_linears", 0)))


def _fuse(model: ModelGraph, group: list[fx.Node]) -> None:
    first = group[0]
    weights = [node.args[1] for node in group]
    biases = [node.args[2] if len(node.args) > 2 else None for node in group]
    widths = [int(fake(weight).shape[0]) for weight in weights]
    stacked = torch.cat([model.parameter(weight) for weight in weights])  # type: ignore[arg-type]
    name = f"fused_{first.args[1].target}"  # type: ignore[union-attr]
    origin = ("stacked", *(model.origin(weight) for weight in weights))  # type: ignore[arg-type]
    weight = model.add_parameter(name, stacked, before=first, origin=origin)
    bias = None
    if any(one is not None for one in biases):
        parts = [
            torch.zeros(width, dtype=stacked.dtype) if one is None else model.parameter(one)  # type: ignore[arg-type]
            for one, width in zip(biases, widths, strict=True)
        ]
        bias_origin = ("stacked", *(width if one is None else model.origin(one) for one, width in zip(biases, widths, strict=True)))  # type: ignore[arg-type]
        bias = model.add_parameter(f"{name}_bias", torch.cat(parts), before=first, origin=bias_origin)
    fused = model.emit(_aten.linear.default, (first.args[0], weight, bias), before=first)
    start, last_dim = 0, fake(fused).dim() - 1
    for node, width in zip(group, widths, strict=True):
        part = model.emit(_aten.slice.Tensor, (fused, last_dim, start, start + width), before=node)
        node.replace_all_uses_with(part)
        model.graph.erase_node(node)
        start += width
