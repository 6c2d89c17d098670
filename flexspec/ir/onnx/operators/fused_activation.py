"""Activations of ONNX Runtime's domain, some fused with the bias before them."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.rules import check_shape, last_dim, only_attributes, outputs
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator(MICROSOFT, "FastGelu")
def fast_gelu(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """GELU by its tanh approximation, of x + bias."""
    only_attributes(context, node, ())
    return outputs(node, context.call(_aten.gelu.default, _biased(context, node, context.optional(node, 1)), approximate="tanh"))


@operator(MICROSOFT, "BiasGelu")
def bias_gelu(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Exact GELU of x + bias."""
    only_attributes(context, node, ())
    return outputs(node, context.call(_aten.gelu.default, _biased(context, node, context.input(node, 1))))


@operator(MICROSOFT, "Gelu")
def gelu(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Exact GELU."""
    only_attributes(context, node, ())
    return outputs(node, context.call(_aten.gelu.default, context.input(node, 0)))


@operator(MICROSOFT, "QuickGelu")
def quick_gelu(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """x * sigmoid(alpha * x), which is SiLU for alpha 1."""
    only_attributes(context, node, {"alpha"})
    x, alpha = context.input(node, 0), float(context.attribute(node, "alpha", 1.702))
    if alpha == 1:
        return outputs(node, context.call(_aten.silu.default, x))
    gate = context.call(_aten.sigmoid.default, context.call(_aten.mul.Tensor, x, alpha))
    return outputs(node, context.call(_aten.mul.Tensor, x, gate))


def _biased(context: ImportContext, node: NodeProto, bias: Value | None) -> Value:
    x = context.input(node, 0)
    if bias is None:
        return x
    check_shape(context, node, bias, [last_dim(context, node, x, "its input")], "bias")
    return context.call(_aten.add.Tensor, x, bias)
