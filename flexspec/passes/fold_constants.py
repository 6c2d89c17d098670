"""What a model computes from its parameters alone: scalars become numbers, and weights of norms are computed once."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_SCALED = {_aten.mul.Tensor, _aten.div.Tensor, _aten.add.Tensor}


def fold_constants(model: ModelGraph) -> int:
    """x * scalar tensor (Gemma's embedding scale) → x * number; 1 + weight (Gemma's norms) → a weight.

    Returns:
        How many calls went or lost a tensor.
    """
    folded = 0
    for node in list(model.graph.nodes):
        if node.op != "call_function" or not is_tensor(node):
            continue
        if _is_of_vectors(node):
            node.replace_all_uses_with(_computed(model, node))
            folded += 1
        elif node.target in _SCALED and len(node.args) == 2 and not node.kwargs:
            folded += _number_instead(model, node)
    model.finish()
    return folded


def _is_of_vectors(node: fx.Node) -> bool:
    """Whether a point-wise call reads parameters of at most one dim, and nothing else."""
    given = node.all_input_nodes
    if not given or not all(map(is_parameter, given)) or torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return False
    return all(fake(one).dim() <= 1 and fake(one).is_floating_point() for one in (*given, node))


def _computed(model: ModelGraph, node: fx.Node) -> fx.Node:
    given = node.all_input_nodes
    values = {one: model.parameter(one).detach().float() for one in given}
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    assert callable(node.target)
    with torch.no_grad():
        value = node.target(*args, **kwargs)
    others = tuple(arg for arg in (*node.args, *node.kwargs.values()) if not isinstance(arg, fx.Node))
    origin = (str(node.target), *map(model.origin, given), *map(repr, others))
    return model.add_parameter(f"{given[0].target}_{node.name}", value, before=node, origin=origin)


def _number_instead(model: ModelGraph, node: fx.Node) -> int:
    args: list[Any] = list(node.args)
    if is_parameter(args[0]) and fake(args[0]).dim() == 0 and node.target != _aten.div.Tensor:
        args.reverse()
    scalar = args[1]
    if not is_parameter(scalar) or fake(scalar).dim() or not fake(scalar).is_floating_point() or is_parameter(args[0]):
        return 0
    node.args = (args[0], float(model.parameter(scalar)))
    return 1
