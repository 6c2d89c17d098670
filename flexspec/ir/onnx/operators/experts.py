"""Mixtures of experts, which are refused by what they are."""

from collections.abc import Sequence

from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.values import Value


@operator(MICROSOFT, "MoE", "QMoE")
def _experts(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    raise context.refusal(node, "it routes tokens to a mixture of experts, which can't be imported from ONNX: give the model's own folder")


@operator("", "TopK")
def _top_k(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    raise context.refusal(
        node, "it chooses by size, as a mixture of experts does, which can't be imported from ONNX: give the model's own folder"
    )
