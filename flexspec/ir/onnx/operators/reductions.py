"""ONNX operators that reduce dims, and those that normalise over them."""

from collections.abc import Sequence
from typing import Any

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.rules import checked_axis
from flexspec.ir.onnx.operators.shapes import axes_of
from flexspec.ir.onnx.registry import Importer, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


def _reduction(target: Any) -> Importer:
    def importer(context: ImportContext, node: NodeProto) -> Sequence[Value]:
        x, axes = context.input(node, 0), axes_of(context, node)
        if not axes:
            if context.attribute(node, "noop_with_empty_axes", 0):
                return [x]
            axes = list(range(x.rank))
        axes = [checked_axis(context, node, axis, x.rank) for axis in axes]
        keepdims = bool(context.attribute(node, "keepdims", 1))
        if target != _aten.prod.dim_int:
            return [context.call(target, x, axes, keepdims)]
        for axis in sorted(axes, reverse=True):
            x = context.call(target, x, axis, keepdims)
        return [x]

    return importer


operator("", "ReduceMean")(_reduction(_aten.mean.dim))
operator("", "ReduceSum")(_reduction(_aten.sum.dim_IntList))
operator("", "ReduceMax")(_reduction(_aten.amax.default))
operator("", "ReduceMin")(_reduction(_aten.amin.default))
operator("", "ReduceProd")(_reduction(_aten.prod.dim_int))


def _of_squares(*, root: bool) -> Importer:
    def importer(context: ImportContext, node: NodeProto) -> Sequence[Value]:
        x, axes = context.input(node, 0), axes_of(context, node) or []
        axes = [checked_axis(context, node, axis, x.rank) for axis in axes or range(x.rank)]
        squares = context.call(_aten.pow.Tensor_Scalar, x, 2)
        total = context.call(_aten.sum.dim_IntList, squares, axes, bool(context.attribute(node, "keepdims", 1)))
        return [context.call(_aten.sqrt.default, total) if root else total]

    return importer


operator("", "ReduceSumSquare")(_of_squares(root=False))
operator("", "ReduceL2")(_of_squares(root=True))


@operator("", "Softmax")
def _softmax(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x = context.input(node, 0)
    axis = checked_axis(context, node, context.attribute(node, "axis", -1 if context.opset() >= 13 else 1), x.rank)
    if context.opset() < 13 and axis != x.rank - 1:
        raise context.refusal(node, "a softmax over several dims is not supported")
    return [context.call(_aten.softmax.int, x, axis)]


@operator("", "LayerNormalization")
def _layer_norm(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    x, weight, bias = context.input(node, 0), context.input(node, 1), context.optional(node, 2)
    axis = checked_axis(context, node, context.attribute(node, "axis", -1), x.rank)
    dims = [x.dim(index) for index in range(axis, x.rank)]
    norm = context.call(_aten.layer_norm.default, x, dims, weight, bias, context.attribute(node, "epsilon", 1e-5))
    return [norm, *(None for _ in node.output[1:])]
