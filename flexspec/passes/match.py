"""Small helpers for matching operator patterns."""

from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten


def is_call(node: Any, target: Any) -> bool:
    """Whether a value is a call of `target`."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target == target


def either_order(node: Any, target: Any) -> list[tuple[Any, Any]]:
    """The two operands of a commutative call in both orders; empty if it is not a call of `target`."""
    if not is_call(node, target) or len(node.args) != 2:
        return []
    first, second = node.args
    return [(first, second), (second, first)]


def scaled(node: Any, factor: float) -> Any:
    """x if the node is x * factor, else None."""
    for x, scalar in either_order(node, _aten.mul.Tensor):
        if isinstance(scalar, int | float) and abs(scalar - factor) <= 1e-6 * abs(factor):
            return x
    return None


def is_parameter(node: Any) -> bool:
    """Whether a value is a parameter or constant of the model."""
    return isinstance(node, fx.Node) and node.op == "get_attr"
