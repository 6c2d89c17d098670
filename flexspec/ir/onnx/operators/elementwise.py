"""ONNX operators that work element by element."""

from collections.abc import Sequence
from typing import Any

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import fused_div, fused_mul, fused_sum, is_call
from flexspec.ir.onnx.registry import Importer, operator
from flexspec.ir.onnx.tensors import DTYPES
from flexspec.ir.onnx.values import Value, broadcast
from flexspec.ir.ops import ATTENTION

_aten = torch.ops.aten


def _unary(target: Any) -> Importer:
    def importer(context: ImportContext, node: NodeProto) -> Sequence[Value]:
        return [context.call(target, context.input(node, 0))]

    return importer


for _name, _target in {
    "Abs": _aten.abs.default,
    "Ceil": _aten.ceil.default,
    "Cos": _aten.cos.default,
    "Erf": _aten.erf.default,
    "Exp": _aten.exp.default,
    "Floor": _aten.floor.default,
    "HardSwish": _aten.hardswish.default,
    "IsNaN": _aten.isnan.default,
    "Log": _aten.log.default,
    "Mish": _aten.mish.default,
    "Neg": _aten.neg.default,
    "Not": _aten.logical_not.default,
    "Relu": _aten.relu.default,
    "Round": _aten.round.default,
    "Sigmoid": _aten.sigmoid.default,
    "Sign": _aten.sign.default,
    "Sin": _aten.sin.default,
    "Softplus": _aten.softplus.default,
    "Sqrt": _aten.sqrt.default,
    "Tanh": _aten.tanh.default,
}.items():
    operator("", _name)(_unary(_target))


def _binary(target: Any) -> Importer:
    def importer(context: ImportContext, node: NodeProto) -> Sequence[Value]:
        return [context.call(target, context.input(node, 0), context.input(node, 1))]

    return importer


for _name, _target in {
    "And": _aten.logical_and.default,
    "Or": _aten.logical_or.default,
    "Xor": _aten.logical_xor.default,
    "Equal": _aten.eq.Tensor,
    "Less": _aten.lt.Tensor,
    "LessOrEqual": _aten.le.Tensor,
    "Greater": _aten.gt.Tensor,
    "GreaterOrEqual": _aten.ge.Tensor,
}.items():
    operator("", _name)(_binary(_target))


def operands(context: ImportContext, node: NodeProto) -> tuple[Any, Any]:
    """Both inputs; a constant of one element is a number if the other is no constant and has as many dims."""
    a, b = context.input(node, 0), context.input(node, 1)
    if not b.is_constant:
        return as_number(a, b), b
    return a, (b if a.is_constant else as_number(b, a))


def as_number(value: Value, other: Value) -> Any:
    """A constant of one element as a number, where broadcasting with `other` leaves that one's shape."""
    if value.is_constant and value.trials[0].numel() == 1 and value.rank <= other.rank and value.dtype != torch.bool:
        return value.trials[0].item()
    return value


@operator("", "Add")
def _add(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    a, b = operands(context, node)
    return [fused_sum(context, a, b)]


@operator("", "Sub")
def _sub(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    a, b = operands(context, node)
    if isinstance(a, Value):
        return [context.call(_aten.sub.Tensor, a, b)]
    return [context.call(_aten.rsub.Scalar, b, a)]


@operator("", "Mul")
def _mul(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    a, b = operands(context, node)
    return [fused_mul(context, a, b)]


@operator("", "Div")
def _div(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    a, b = operands(context, node)
    return [fused_div(context, a, b)]


@operator("", "Reciprocal")
def _reciprocal(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [fused_div(context, 1.0, context.input(node, 0))]


@operator("", "Pow")
def _pow(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    a, b = operands(context, node)
    if not isinstance(b, Value):
        exponent = int(b) if float(b).is_integer() else b
        return [context.call(_aten.pow.Tensor_Scalar, a, exponent)]
    return [context.call(_aten.pow.Tensor_Tensor if isinstance(a, Value) else _aten.pow.Scalar, a, b)]


@operator("", "Mod")
def _mod(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    target = _aten.fmod.Tensor if context.attribute(node, "fmod", 0) else _aten.remainder.Tensor
    return [context.call(target, context.input(node, 0), context.input(node, 1))]


def _nary(target: Any) -> Importer:
    def importer(context: ImportContext, node: NodeProto) -> Sequence[Value]:
        result = context.input(node, 0)
        for index in range(1, len(node.input)):
            result = context.call(target, result, context.input(node, index))
        return [result]

    return importer


operator("", "Max")(_nary(_aten.maximum.default))
operator("", "Min")(_nary(_aten.minimum.default))


@operator("", "Sum")
def _sum(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    result: Any = context.input(node, 0)
    for index in range(1, len(node.input)):
        result = fused_sum(context, result, context.input(node, index))
    return [result]


@operator("", "Clip")
def _clip(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x = context.input(node, 0)
    bounds = [context.attribute(node, "min"), context.attribute(node, "max")]
    for index in (1, 2):
        if (bound := context.optional(node, index)) is not None:
            bounds[index - 1] = context.known(node, bound).item()
    return [x] if bounds == [None, None] else [context.call(_aten.clamp.default, x, *bounds)]


@operator("", "Where")
def _where(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    condition, x, y = (context.input(node, index) for index in range(3))
    if condition.is_token_free:
        for given, chosen in ((True, x), (False, y)):
            everywhere = all(bool((one == given).all()) for one in condition.trials)
            if everywhere and all(
                one.shape == broadcast(one.shape, c.shape, a.shape, b.shape)
                for one, c, a, b in zip(chosen.trials, condition.trials, x.trials, y.trials, strict=True)
            ):
                return [chosen]
    # A row that sees nothing; in causal attention a token sees itself.
    call = condition.call
    if call is not None and call.target == _aten.isnan.default and call.args[0] is y and _is_of_attention(y):
        return [y]
    return [context.call(_aten.where.self, condition, x, y)]


def _is_of_attention(value: Value) -> bool:
    """Whether it is probabilities or results of attention, whose shape may have been changed since."""
    while any(is_call(value, one) for one in (_aten.reshape.default, _aten.permute.default)):
        assert value.call is not None
        value = value.call.args[0]
    return is_call(value, _aten.softmax.int) or is_call(value, ATTENTION)


@operator("", "Cast")
def _cast(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    kind = context.attribute(node, "to")
    if kind not in DTYPES:
        raise context.refusal(node, f"it makes elements of type {kind}, which is not supported")
    return [cast(context, context.input(node, 0), DTYPES[kind])]


@operator("", "CastLike")
def _cast_like(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [cast(context, context.input(node, 0), context.input(node, 1).dtype)]


def cast(context: ImportContext, value: Value, dtype: torch.dtype) -> Value:
    """A value in another type; all floats are one type, since the compiled model has a type of its own."""
    if dtype.is_floating_point:
        return value if value.is_floating_point else context.call(_aten.to.dtype, value, torch.float32)
    return value if value.dtype == dtype else context.call(_aten.to.dtype, value, dtype)


@operator("", "Identity")
def _identity(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    return [context.input(node, 0)]


@operator("", "Dropout")
def _dropout(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    x, training = context.input(node, 0), context.optional(node, 2)
    if training is not None and context.known(node, training).any():
        raise context.refusal(node, "it drops values at random (training_mode); export the model for inference, after eval()")
    return [x, *(None for _ in node.output[1:])]


@operator("", "Gelu")
def _gelu(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [context.call(_aten.gelu.default, context.input(node, 0), approximate=context.attribute(node, "approximate", "none"))]


@operator("", "IsInf")
def _is_inf(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    if not context.attribute(node, "detect_negative", 1) or not context.attribute(node, "detect_positive", 1):
        raise context.refusal(node, "it detects infinities of one sign, which is not supported")
    return [context.call(_aten.isinf.default, context.input(node, 0))]


@operator("", "LeakyRelu")
def _leaky_relu(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [context.call(_aten.leaky_relu.default, context.input(node, 0), context.attribute(node, "alpha", 0.01))]


@operator("", "Elu")
def _elu(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [context.call(_aten.elu.default, context.input(node, 0), context.attribute(node, "alpha", 1.0))]


@operator("", "Swish")
def _swish(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, alpha = context.input(node, 0), context.attribute(node, "alpha", 1.0)
    if alpha == 1.0:
        return [context.call(_aten.silu.default, x)]
    return [context.call(_aten.mul.Tensor, x, context.call(_aten.sigmoid.default, context.call(_aten.mul.Tensor, x, alpha)))]
