"""ONNX matrix products."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.attention import recognised_attention
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import fused_mul, fused_sum
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator("", "MatMul")
def _matmul(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [product(context, node, context.input(node, 0), context.input(node, 1))]


def product(context: ImportContext, node: NodeProto, a: Value, b: Value) -> Value:
    """a @ b: a linear layer if b is a constant matrix, attention if a is a softmax."""
    if b.is_constant and b.rank == 2 and not a.is_constant:
        return linear(context, a, b)
    attention = recognised_attention(context, node, a, b)
    return context.call(_aten.matmul.default, a, b) if attention is None else attention


def linear(context: ImportContext, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x @ weight + bias, of a constant weight [in, out]."""
    turned = context.call(_aten.permute.default, weight, [1, 0])
    return context.call(_aten.linear.default, x, context.embedding_like(turned), bias)


@operator("", "Gemm")
def _gemm(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [gemm(context, node)]


def gemm(context: ImportContext, node: NodeProto) -> Value:
    """alpha * A' B' + beta * C of matrices, each of A and B transposed as the attributes say."""
    a, b, c = context.input(node, 0), context.input(node, 1), context.optional(node, 2)
    alpha, beta = context.attribute(node, "alpha", 1.0), context.attribute(node, "beta", 1.0)
    if a.rank != 2 or b.rank != 2:
        raise context.refusal(node, f"its inputs must be matrices, but have {a.rank} and {b.rank} dims")
    if context.attribute(node, "transA", 0):
        a = context.call(_aten.permute.default, a, [1, 0])
    if context.attribute(node, "transB", 0):
        b = context.call(_aten.permute.default, b, [1, 0])
    result = product(context, node, a, b)
    if alpha != 1.0:
        result = fused_mul(context, result, float(alpha))
    if c is None:
        return result
    return fused_sum(context, result, c if beta == 1.0 else fused_mul(context, c, float(beta)))
