"""Weights of experts that lie in one tensor: what the graph takes of it becomes parameters, which are views and cost nothing."""

import operator
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import ROUTED_EXPERTS
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_VIEWS = {_aten.transpose.int, _aten.slice.Tensor, _aten.chunk.default, operator.getitem}


def take_expert_weights(model: ModelGraph) -> tuple[int, int]:
    """Gate and up, halves or turns of one tensor, and what is transposed → parameters of the experts.

    Returns:
        Weights and biases of experts that are parameters, and how many there are.
    """
    found = expected = 0
    taken: dict[fx.Node, fx.Node] = {}
    for experts in model.nodes(ROUTED_EXPERTS):
        operands: list[Any] = list(experts.args)
        for place in range(3, 9):
            operand = operands[place]
            if isinstance(operand, fx.Node):
                operands[place] = taken[operand] = taken.get(operand) or _taken(model, operand, experts)
                found, expected = found + is_parameter(operands[place]), expected + 1
        experts.args = tuple(operands)
    model.finish()
    return found, expected


def _taken(model: ModelGraph, operand: fx.Node, before: fx.Node) -> fx.Node:
    moves: list[fx.Node] = []
    source: Any = operand
    while isinstance(source, fx.Node) and source.target in _VIEWS and len(source.all_input_nodes) == 1:
        moves.append(source)
        source = source.args[0]
    if not moves or not is_parameter(source):
        return operand
    value: Any = model.parameter(source)
    for move in reversed(moves):
        assert callable(move.target)
        value = move.target(value, *move.args[1:])
    place = (tuple(value.shape), value.stride(), value.storage_offset())
    return model.add_parameter(f"{source.target}_{operand.name}", value, before, ("view", *place, model.origin(source)))
