"""Data movement that PyTorch can say more simply: indexing by constant neighbours is a slice, a transposed parameter a parameter."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_TRANSPOSES = (_aten.numpy_T.default, _aten.t.default)


def simplify_moves(model: ModelGraph) -> int:
    """index(x, [None, …, constant neighbours]) → slice; a transposed matrix of parameters → a parameter of its own.

    Returns:
        Matches.
    """
    matches = 0
    for node in model.nodes(_aten.index.Tensor):
        found = _neighbours(model, node)
        if found is not None:
            node.replace_all_uses_with(model.emit(_aten.slice.Tensor, (node.args[0], *found), before=node))
            matches += 1
    for node in model.nodes(*_TRANSPOSES):
        source = node.args[0]
        if is_parameter(source) and fake(source).dim() == 2:
            assert isinstance(source, fx.Node)
            value, origin = model.parameter(source).t(), ("transposed", model.origin(source))
            node.replace_all_uses_with(model.add_parameter(f"{source.target}_transposed", value, before=node, origin=origin))
            matches += 1
    model.finish()
    return matches


def _neighbours(model: ModelGraph, node: fx.Node) -> tuple[int, int, int] | None:
    """Dim, start and end of what is indexed, if one dim is, by constants that follow each other."""
    indices: Any = node.args[1]
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not is_parameter(given[0][1]) or fake(given[0][1]).dim() != 1:
        return None
    dim, index = given[0]
    size = fake(node.args[0]).shape[dim]
    if not isinstance(size, int):
        return None
    places = [int(place) % size for place in model.parameter(index).tolist()]
    start, end = places[0], places[0] + len(places)
    return (dim, start, end) if places == list(range(start, end)) else None
