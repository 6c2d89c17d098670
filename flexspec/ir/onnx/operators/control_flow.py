"""Control flow: `If` with a condition that is the same whatever the tokens are."""

from collections.abc import Sequence

import torch
from onnx import GraphProto, NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.nodes import add_tensors, import_nodes, needed, tensors_of
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Value

_LOOPS = ("Loop", "Scan", "SequenceMap")


@operator("", "If")
def _if(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """The branch that is taken, in the node's place; it may be another one in longer texts, which bounds how long they may be."""
    condition = context.input(node, 0)
    if not condition.is_token_free:
        raise context.refusal(node, "which branch it takes depends on the tokens, which is not supported")
    if any(one.numel() != 1 or one.dtype != torch.bool for one in condition.trials):
        raise context.refusal(node, f"its condition is {condition.dtype} {list(condition.trials[0].shape)}; it must be one boolean")
    taken = {bool(one.reshape(())) for one in condition.trials}
    if len(taken) > 1:
        raise context.length_refusal(node, "which branch it takes depends on how long the text is")
    branch = context.attribute(node, "then_branch" if taken.pop() else "else_branch")
    if not isinstance(branch, GraphProto) or len(branch.output) != len(node.output):
        raise context.refusal(node, "its branch has another number of outputs than itself")
    outputs = [str(one.name) for one in branch.output]
    with context.branch(node):
        add_tensors(context, tensors_of(branch, context.path))
        import_nodes(context, needed(branch, outputs))
        for name in outputs:
            if name not in context.values:
                raise context.refusal(node, f"its branch gives {name!r}, which nothing makes")
        return [context.values[name] for name in outputs]


@operator("", *_LOOPS)
def _loop(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    raise context.refusal(node, "loops are not supported: export the model without scripting")
