"""What a model computes from its parameters alone: scalars become numbers, weights are computed once."""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from flexspec.ir.evaluate import runnable
from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_SCALED = {_aten.mul.Tensor, _aten.div.Tensor, _aten.add.Tensor}
_LESS_EXACT = {torch.float16, torch.bfloat16}


def fold_constants(model: ModelGraph) -> int:
    """x * scalar tensor (Gemma's embedding scale) → x * number; 1 + weight (Gemma's norms), weight[:n], weight.T, … → a weight.

    Returns:
        How many calls went or lost a tensor.
    """
    folded = 0
    parts: dict[fx.Node, tuple[list[Tensor], tuple[Any, ...]]] = {}
    for node in list(model.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target == operator.getitem and node.args[0] in parts:
            values, origin = parts[node.args[0]]
            place: Any = node.args[1]
            _replace(model, node, values[place], (*origin, place))
            folded += 1
        elif _is_of_parameters(node):
            value, origin = _computed(model, node)
            if isinstance(value, Tensor):
                _replace(model, node, value, origin)
            else:
                parts[node] = list(value), origin
            folded += 1
        elif is_tensor(node) and node.target in _SCALED and len(node.args) == 2 and not node.kwargs:
            folded += _number_instead(model, node)
    model.finish()
    return folded


def _is_of_parameters(node: fx.Node) -> bool:
    """Whether a call computes float32 values from parameters, and from nothing else."""
    given, value = node.all_input_nodes, node.meta.get("val")
    if not given or not all(map(is_parameter, given)) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return all(isinstance(one, Tensor) and one.dtype == torch.float32 for one in (value if isinstance(value, list | tuple) else (value,)))


def _computed(model: ModelGraph, node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The value, a view where the call is one, and what identifies it."""
    given = node.all_input_nodes
    values = {one: model.parameter(one).detach() for one in given}
    assert isinstance(node.target, torch._ops.OpOverload)
    if all(one.alias_info is None for one in node.target._schema.returns):
        values = {one: value.float() if value.dtype in _LESS_EXACT else value for one, value in values.items()}
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        value = runnable(node.target)(*args, **kwargs)
    places = {one: f"#{place}" for place, one in enumerate(given)}
    rest = repr(fx.node.map_arg((node.args, node.kwargs), places.__getitem__))
    return value, (str(node.target), *map(model.origin, given), rest)


def _replace(model: ModelGraph, node: fx.Node, value: Tensor, origin: tuple[Any, ...]) -> None:
    call: Any = node.args[0] if node.target == operator.getitem else node
    name = f"{call.all_input_nodes[0].target}_{node.name}"
    node.replace_all_uses_with(model.add_parameter(name, value, before=node, origin=origin))


def _number_instead(model: ModelGraph, node: fx.Node) -> int:
    args: list[Any] = list(node.args)
    if is_parameter(args[0]) and fake(args[0]).dim() == 0 and node.target != _aten.div.Tensor:
        args.reverse()
    scalar = args[1]
    if not is_parameter(scalar) or fake(scalar).dim() or not fake(scalar).is_floating_point() or is_parameter(args[0]):
        return 0
    node.args = (args[0], float(model.parameter(scalar)))
    return 1
