"""Native instructions of what is done to each element alone."""

import math
from typing import Any

import torch
from torch import fx

from flexspec.codegen.cpu.instruction_builder import InstructionBuilder
from flexspec.codegen.cpu.instruction_list import Columns, UnsupportedOperator
from flexspec.ir.graph import fake

_aten = torch.ops.aten

_ACTIVATIONS = {
    _aten.silu.default: "silu",
    _aten.relu.default: "relu",
    _aten.gelu.default: "gelu",
    _aten.tanh.default: "tanh",
    _aten.sigmoid.default: "sigmoid",
    _aten.expm1.default: "expm1",
}
_BINARY = {_aten.add.Tensor: "add", _aten.mul.Tensor: "mul", _aten.sub.Tensor: "sub", _aten.div.Tensor: "div"}
_COMMUTATIVE = ("add", "mul")


def activation(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    kind = _ACTIVATIONS[node.target]  # type: ignore[index]
    if node.kwargs.get("approximate", "none") == "tanh":
        kind = "gelu_tanh"
    return b.append("activation", node, {"x": args[0]}, kind=kind)


def binary(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    kind = _BINARY[node.target]  # type: ignore[index]
    first, second = args
    if node.kwargs:
        raise UnsupportedOperator(f"{node.target} with {dict(node.kwargs)}")
    if kind in _COMMUTATIVE and (not isinstance(first, Columns) or (isinstance(second, Columns) and second.cols > first.cols)):
        first, second = second, first
    if (number := _number(b, second)) is not None:
        scalar = {"add": number, "mul": number, "sub": -number, "div": 1 / number if number else math.inf}[kind]
        return b.append("add_scalar" if kind in ("add", "sub") else "mul_scalar", node, {"x": first}, value=scalar)
    if not isinstance(first, Columns) or not _broadcasts(second, first):
        raise UnsupportedOperator(f"{node.target} with broadcasting")
    if isinstance(second, fx.Node):
        return b.append(kind, node, {"a": first}, b=second)
    return b.append(kind, node, {"a": first, "b": second})


def square(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if args[1:] not in ((), (2,)):
        raise UnsupportedOperator(f"{node.target} to the power of {args[1]}")
    return b.append("mul", node, {"a": args[0], "b": args[0]})


def clamp(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, low, high = (*args, None, None)[:3]
    return _limited(b, node, x, -math.inf if low is None else low, math.inf if high is None else high)


def least(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return _limited(b, node, args[0], -math.inf, args[1])


def greatest(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return _limited(b, node, args[0], args[1], math.inf)


def greater(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("greater", node, {"x": args[0]}, value=float(args[1]))


def where(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if len({value.cols if isinstance(value, Columns) else 0 for value in args}) > 1:
        raise UnsupportedOperator(f"{node.target} with broadcasting")
    return b.append("where", node, dict(zip(("condition", "a", "b"), args, strict=True)))


def _limited(b: InstructionBuilder, node: fx.Node, x: Any, low: Any, high: Any) -> Columns:
    low, high = _number(b, low), _number(b, high)
    if node.kwargs or low is None or high is None:
        raise UnsupportedOperator(f"{node.target} by something other than numbers")
    return b.append("clamp", node, {"x": x}, low=low, high=high)


def _number(b: InstructionBuilder, value: Any) -> float | None:
    """What is a number, or a parameter of one element; None if it is neither."""
    if isinstance(value, fx.Node) and value.op == "get_attr" and fake(value).numel() == 1 and fake(value).is_floating_point():
        return float(b.model.parameter(value))
    return float(value) if isinstance(value, int | float) else None


def _broadcasts(second: Any, first: Columns) -> bool:
    """Whether a value has as many columns as the first one, or one for all of them; whether a parameter has as many elements."""
    if isinstance(second, fx.Node):
        return fake(second).numel() == first.cols
    return isinstance(second, Columns) and (second.cols == first.cols or (second.cols == first.heads == 1))
