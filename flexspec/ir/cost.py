"""What an operator costs: floating-point operations and bytes of parameters."""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION, PACKED_LINEAR, ROUTED_EXPERTS, TREE_ATTENTION
from flexspec.ir.positions import position_values

_EMBEDDING = torch.ops.aten.embedding.default
_LINEARS = {PACKED_LINEAR, torch.ops.aten.linear.default}


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Costs of a whole model.

    Attributes:
        linear_flops: of matrix products, for one token, the LM head included.
        attention_flops_per_key: of attention, for one token and one key it sees, over all layers.
        parameters: numbers in the weights, a tied weight counted once.
    """

    linear_flops: int
    attention_flops_per_key: int
    parameters: int

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations for one token that sees `context` keys."""
        return self.linear_flops + context * self.attention_flops_per_key


def operator_flops(node: fx.Node) -> tuple[int, int]:
    """FLOPs of a call for one token: those of matrix products, and those for each key seen."""
    if node.target in _LINEARS:
        out_features, in_features = (int(dim) for dim in fake(node.args[1]).shape)
        return 2 * out_features * in_features, 0
    if node.target == ROUTED_EXPERTS:
        of_one = sum(math.prod(int(dim) for dim in fake(node.args[place]).shape[1:]) for place in (3, 5, 7))
        return 2 * of_one * int(fake(node.args[1]).shape[-1]), 0
    if node.target in (ATTENTION, TREE_ATTENTION):
        heads, head_dim = (int(dim) for dim in fake(node.args[0]).shape[-2:])
        return 0, 4 * heads * head_dim
    return 0, 0


def model_cost(model: ModelGraph) -> ModelCost:
    """Add up the operators of a recognised graph (its products are linears), each block as often as it is called."""
    linear = per_key = 0
    for node in all_calls(model.module):
        flops, of_key = operator_flops(node)
        linear, per_key = linear + flops, per_key + of_key
    return ModelCost(linear_flops=linear, attention_flops_per_key=per_key, parameters=_parameters(model))


def _parameters(model: ModelGraph) -> int:
    """Numbers in the weights; constants from which rotary tables are computed are none."""
    constants = {arg for node in position_values(model)[0] if node.target != _EMBEDDING for arg in node.all_input_nodes}
    weights = [model.parameter(node) for node in model.graph.find_nodes(op="get_attr") if node not in constants]
    seen = {weight.data_ptr(): weight.numel() for weight in weights if weight.is_floating_point()}
    return sum(seen.values())


def all_calls(module: fx.GraphModule) -> list[fx.Node]:
    """Operator calls in order, those of a block as often as it is called."""
    calls: list[fx.Node] = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            calls.append(node)
        elif node.op == "call_module":
            calls += all_calls(module.get_submodule(str(node.target)))  # type: ignore[arg-type]
    return calls


def count_operators(module: fx.GraphModule) -> Counter[str]:
    """How often each operator is called."""
    return Counter(str(node.target) for node in all_calls(module))
