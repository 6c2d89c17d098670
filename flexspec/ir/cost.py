"""What an operator costs: floating-point operations and bytes of parameters."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION, PACKED_LINEAR, TREE_ATTENTION

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
    """FLOPs of a call for one token: those of matrix products, and those for each key seen (SEARCH, equations 2 and 3)."""
    if node.target in _LINEARS:
        out_features, in_features = (int(dim) for dim in fake(node.args[1]).shape)
        return 2 * out_features * in_features, 0
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
    seen = {tensor.data_ptr(): tensor.numel() for tensor in model.module.buffers() if tensor.is_floating_point()}
    return ModelCost(linear_flops=linear, attention_flops_per_key=per_key, parameters=sum(seen.values()))


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
