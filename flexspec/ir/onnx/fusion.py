"""Sums, products, reshapes and transposes, written in the form that the passes know: what exporters take apart is put together again."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flexspec.ir.onnx.values import Value, one_int

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

_aten = torch.ops.aten
_ELEMENT_WISE = {
    _aten.add.Tensor,
    _aten.mul.Tensor,
    _aten.div.Tensor,
    _aten.pow.Tensor_Scalar,
    _aten.erf.default,
    _aten.tanh.default,
}
_PROBE = torch.linspace(-5, 5, 41)


def is_call(value: Any, target: Any) -> bool:
    """Whether a value was computed by `target`; constants never are."""
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
    for factors in ([*_factors(a), *_factors(b)], [a, *_factors(b)], [*_factors(a), b]):
        if (gelu := _gelu(context, factors)) is not None:
            return gelu
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


def _gelu(context: "ImportContext", factors: list[Any]) -> Value | None:
    """x * 1/2 * (1 + erf or tanh of a function of x) → GELU, if it gives the same numbers however it is written."""
    bent = [one for one in factors if any(is_call(f, _aten.erf.default) or is_call(f, _aten.tanh.default) for f, _ in _terms(one))]
    if len(bent) != 1 or len(factors) < 2:
        return None
    for x in factors:
        if not isinstance(x, Value) or x is bent[0] or x.is_token_free:
            continue
        found: dict[int, Any] = {}
        results = [_evaluated(one, x, found) for one in factors]
        if any(result is None for result in results):
            continue
        product = math.prod(results[1:], start=results[0])
        for approximate in ("none", "tanh"):
            if torch.allclose(product, _aten.gelu.default(_PROBE, approximate=approximate), rtol=0, atol=2e-6):
                return context.call(_aten.gelu.default, x, approximate=approximate)
    return None


def _terms(value: Any) -> list[tuple[Any, Any]]:
    return either_order(value, _aten.add.Tensor)


def _evaluated(value: Any, x: Value, found: dict[int, Any]) -> Any:
    """An element-wise function of x at `_PROBE`; None if it is something else. Each value is evaluated once."""
    if id(value) not in found:
        found[id(value)] = _evaluated_anew(value, x, found)
    return found[id(value)]


def _evaluated_anew(value: Any, x: Value, found: dict[int, Any]) -> Any:
    if value is x:
        return _PROBE
    if not isinstance(value, Value):
        return value
    if value.is_constant:
        return value.trials[0] if value.trials[0].numel() == 1 else None
    if value.call is None or value.call.target not in _ELEMENT_WISE:
        return None
    args = [_evaluated(one, x, found) for one in value.call.args]
    return None if any(one is None for one in args) else value.call.target(*args)


def reshaped(context: "ImportContext", x: Value, shapes: Sequence[Sequence[int]]) -> Value:
    """x with other dims, given for each trial; a reshape of a reshape is one, and one to the same dims none."""
    while is_call(x, _aten.reshape.default) or is_call(x, _aten.unsqueeze.default):
        assert x.call is not None
        x = x.call.args[0]
    if all(list(one.shape) == list(shape) for one, shape in zip(x.trials, shapes, strict=True)):
        return x
    repeated = _repeated(context, x, shapes)
    return repeated or context.call(_aten.reshape.default, x, [one_int(sizes) for sizes in zip(*shapes, strict=True)])


def heads_apart(context: "ImportContext", x: Value) -> Value | None:
    """x as [batch, length, heads, head_dim] if it is that with length and heads merged, otherwise None."""
    if not is_call(x, _aten.reshape.default) or x.rank != 3:
        return None
    assert x.call is not None
    source: Value = x.call.args[0]
    sizes = [(trial.batch, trial.length) for trial in context.trials]
    if x.shape[1] == context.length or any(tuple(one.shape[:2]) != size for one, size in zip(source.trials, sizes, strict=True)):
        return None
    if any(one.shape[0] != size[0] or one.shape[1] % size[1] for one, size in zip(x.trials, sizes, strict=True)):
        return None
    return reshaped(context, source, [[*size, one.shape[1] // size[1], one.shape[2]] for one, size in zip(x.trials, sizes, strict=True)])


def _repeated(context: "ImportContext", x: Value, shapes: Sequence[Sequence[int]]) -> Value | None:
    """What a new dim, expanded and merged with the one before it, does: each element of that one comes several times in a row."""
    if not is_call(x, _aten.expand.default):
        return None
    assert x.call is not None
    source: Any = x.call.args[0]
    if not is_call(source, _aten.unsqueeze.default):
        return None
    rows, dim = source.call.args[0], source.call.args[1]
    times = x.shape[dim]
    if dim == 0 or not isinstance(times, int):
        return None
    for one, expanded, shape in zip(rows.trials, x.trials, shapes, strict=True):
        merged = [*one.shape[: dim - 1], one.shape[dim - 1] * times, *one.shape[dim:]]
        if list(shape) != merged or expanded.numel() != one.numel() * times:
            return None
    if is_call(rows, _aten.permute.default):
        moved, order = rows.call.args
        return permuted(context, context.call(_aten.repeat_interleave.self_int, moved, times, order[dim - 1] % rows.rank), order)
    return context.call(_aten.repeat_interleave.self_int, rows, times, dim - 1)


def permuted(context: "ImportContext", x: Value, order: Sequence[int]) -> Value:
    """x with its dims in another order; a permutation of a permutation is one, and one in the same order none."""
    order = [dim % x.rank for dim in order]
    if is_call(x, _aten.permute.default):
        assert x.call is not None
        x, inner = x.call.args
        order = [inner[dim] for dim in order]
    return x if order == list(range(len(order))) else context.call(_aten.permute.default, x, order)
