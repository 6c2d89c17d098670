"""FusedMatMul, a matrix product with its scale and transpositions, and FusedGemm, one with its activation."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import fused_mul, permuted
from flexspec.ir.onnx.operators.products import gemm, product
from flexspec.ir.onnx.operators.rules import only_attributes, outputs
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten
_ACTIVATIONS = {"Relu": _aten.relu.default, "Sigmoid": _aten.sigmoid.default, "Tanh": _aten.tanh.default}


@operator(MICROSOFT, "FusedMatMul", "TransposeMatMul")
def fused_matmul(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """alpha * A' B', each transposed as the attributes say."""
    only_attributes(context, node, {"alpha", "transA", "transB", "transBatchA", "transBatchB"})
    a, b = (_transposed(context, node, index, side) for index, side in enumerate("AB"))
    result, alpha = product(context, node, a, b), float(context.attribute(node, "alpha", 1.0))
    return outputs(node, result if alpha == 1 else fused_mul(context, result, alpha))


def _transposed(context: ImportContext, node: NodeProto, index: int, side: str) -> Value:
    x = context.input(node, index)
    if context.attribute(node, f"transBatch{side}", 0) and x.rank > 2:
        # The first dim goes behind the batch dims: it is the one that the product takes as rows.
        x = permuted(context, x, [*range(1, x.rank - 1), 0, x.rank - 1])
    if context.attribute(node, f"trans{side}", 0) and x.rank > 1:
        x = permuted(context, x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])
    return x


@operator(MICROSOFT, "FusedGemm")
def fused_gemm(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Gemm, then the activation that an attribute names."""
    only_attributes(context, node, {"activation", "alpha", "beta", "transA", "transB"})
    activation = context.attribute(node, "activation", "")
    if activation not in ("", *_ACTIVATIONS):
        raise context.refusal(node, f"its activation {activation!r} is not supported; {', '.join(_ACTIVATIONS)} are")
    result = gemm(context, node)
    return outputs(node, context.call(_ACTIVATIONS[activation], result) if activation else result)
