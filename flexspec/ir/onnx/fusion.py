"""Sums, products, reshapes and transposes, written in the form that the passes know: what exporters take apart is put together again."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flexspec.ir.onnx.values import Value, one_int

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

_aten = torch.ops.aten
_HALF_ROOT = math.sqrt(0.5)


def is_call(value: Any, target: Any) -> bool:
    """Whether a value was computed by `target` from something that is no constant."""
    return isinstance(value, Value) and value.call is not None and value.call.target == target


def either_order(value: Any, target: Any) -> list[tuple[Any, Any]]:
    """The two operands of a commutative call in both orders; empty if it is not a call of `target`."""
    if not is_call(value, target):
        return []
    a, b = value.call.args[:2]
    return [(a, b), (b, a)]


def fused_sum(context: "ImportContext", a: Any, b: Any) -> Value:
    """a + b, of values or numbers; a constant added to a linear layer or a layer norm becomes its bias."""
    for x, bias in ((a, b), (b, a)):
        if not isinstance(bias, Value) or not bias.is_constant:
            continue
        if is_call(x, _aten.linear.default) and x.call.args[2] is None and bias.trials[0].shape == x.trials[0].shape[-1:]:
            return context.call(_aten.linear.default, *x.call.args[:2], bias)
        if is_call(x, _aten.layer_norm.default) and x.call.args[3] is None and list(bias.trials[0].shape) == x.call.args[1]:
            source, dims, weight, _, eps = x.call.args
            return context.call(_aten.layer_norm.default, source, dims, weight, bias, eps)
    return context.call(_aten.add.Tensor, a, b) if isinstance(a, Value) else context.call(_aten.add.Tensor, b, a)


def fused_mul(context: "ImportContext", a: Any, b: Any) -> Value:
    """a * b, of values or numbers; x * sigmoid(x) is SiLU, and GELU and layer norm are recognised."""
    for x, other in ((a, b), (b, a)):
        if is_call(other, _aten.sigmoid.default) and other.call.args[0] is x:
            return context.call(_aten.silu.default, x)
        if (norm := _layer_norm(context, x, other)) is not None:
            return norm
    if (source := _gelu_source([*_factors(a), *_factors(b)])) is not None:
        return context.call(_aten.gelu.default, source, approximate="none")
    return context.call(_aten.mul.Tensor, a, b) if isinstance(a, Value) else context.call(_aten.mul.Tensor, b, a)


def fused_div(context: "ImportContext", a: Any, b: Any) -> Value:
    """a / b, of values or numbers; division by a square root is a product with its reciprocal."""
    if is_call(b, _aten.sqrt.default) and not b.is_token_free:
        root = context.call(_aten.rsqrt.default, b.call.args[0])
        return root if isinstance(a, int | float) and a == 1 else fused_mul(context, a, root)
    if _is_whole(a) and _is_whole(b):
        if not isinstance(a, Value):
            a = context.constant(torch.tensor(a))
        return context.call(_aten.div.Tensor_mode, a, b, rounding_mode="trunc")
    if not isinstance(a, Value):
        inverse = context.call(_aten.reciprocal.default, b)
        return inverse if a == 1 else context.call(_aten.mul.Tensor, inverse, a)
    return context.call(_aten.div.Tensor, a, b)


def _is_whole(operand: Any) -> bool:
    return not operand.is_floating_point if isinstance(operand, Value) else isinstance(operand, int)


def _layer_norm(context: "ImportContext", x: Any, other: Any) -> Value | None:
    """(x - mean) * rsqrt(variance + eps) → layer norm; layer norm * constant → layer norm with weight."""
    if is_call(x, _aten.layer_norm.default) and isinstance(other, Value) and other.is_constant:
        source, dims, weight, bias, eps = x.call.args
        if weight is None and bias is None and list(other.trials[0].shape) == dims:
            return context.call(_aten.layer_norm.default, source, dims, other, None, eps)
    if not is_call(x, _aten.sub.Tensor) or not is_call(other, _aten.rsqrt.default):
        return None
    source, mean = x.call.args
    for variance, eps in either_order(other.call.args[0], _aten.add.Tensor):
        if not isinstance(eps, float) or not _is_mean_of_last_dim(variance) or not _is_mean_of_last_dim(mean):
            continue
        square = variance.call.args[0]
        squared = is_call(square, _aten.pow.Tensor_Scalar) and square.call.args == (x, 2)
        squared = squared or (is_call(square, _aten.mul.Tensor) and square.call.args[0] is x and square.call.args[1] is x)
        if mean.call.args[0] is source and squared:
            return context.call(_aten.layer_norm.default, source, [source.dim(-1)], None, None, eps)
    return None


def _is_mean_of_last_dim(value: Any) -> bool:
    return is_call(value, _aten.mean.dim) and value.call.args[1] in ([-1], [value.rank - 1]) and value.call.args[2]


def _factors(value: Any) -> list[Any]:
    if is_call(value, _aten.mul.Tensor):
        return list(value.call.args)
    return [value]


def _gelu_source(factors: list[Any]) -> Value | None:
    """x of the factors x, 1/2 and 1 + erf(x / √2)."""
    if len(factors) != 3 or not any(isinstance(one, float) and one == 0.5 for one in factors):
        return None
    for factor in factors:
        for error, one in either_order(factor, _aten.add.Tensor):
            if one == 1 and is_call(error, _aten.erf.default):
                inner = error.call.args[0]
                for x in factors:
                    if isinstance(x, Value) and x is not factor and _is_scaled(inner, x):
                        return x
    return None


def _is_scaled(inner: Any, x: Value) -> bool:
    for target, factor in ((_aten.mul.Tensor, _HALF_ROOT), (_aten.div.Tensor, 1 / _HALF_ROOT)):
        if is_call(inner, target) and inner.call.args[0] is x and isinstance(inner.call.args[1], float):
            return abs(inner.call.args[1] - factor) < 1e-6
    return False


def reshaped(context: "ImportContext", x: Value, shapes: Sequence[Sequence[int]]) -> Value:
    """x with other dims, given for each trial; a reshape of a reshape is one, and one to the same dims none."""
    while is_call(x, _aten.reshape.default) or is_call(x, _aten.unsqueeze.default):
        assert x.call is not None
        x = x.call.args[0]
    if all(list(one.shape) == list(shape) for one, shape in zip(x.trials, shapes, strict=True)):
        return x
    return context.call(_aten.reshape.default, x, [one_int(sizes) for sizes in zip(*shapes, strict=True)])


def permuted(context: "ImportContext", x: Value, order: Sequence[int]) -> Value:
    """x with its dims in another order; a permutation of a permutation is one, and one in the same order none."""
    order = [dim % x.rank for dim in order]
    if is_call(x, _aten.permute.default):
        assert x.call is not None
        x, inner = x.call.args
        order = [inner[dim] for dim in order]
    return x if order == list(range(len(order))) else context.call(_aten.permute.default, x, order)
