"""ONNX sequences, as exporters write what is cut into chunks: a sequence is the list of its tensors."""

from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import reshaped
from flexspec.ir.onnx.operators.rules import checked_axis
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator("", "SplitToSequence")
def _split(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Chunks along an axis: of one size, of given sizes, or of one index each."""
    x = context.input(node, 0)
    axis = checked_axis(context, node, context.attribute(node, "axis", 0), x.rank)
    size = x.shape[axis]
    if not isinstance(size, int):
        raise context.refusal(node, "it divides batch or length")
    given = context.known(node, context.input(node, 1)) if context.has_input(node, 1) else torch.tensor(1)
    if given.dim():
        sizes = given.tolist()
    else:
        chunk = max(int(given), 1)
        sizes = [min(chunk, size - start) for start in range(0, size, chunk)]
    if any(one < 0 for one in sizes) or sum(sizes) != size:
        raise context.refusal(node, f"{size} can't be divided into {given.tolist()}")
    ends = torch.tensor(sizes).cumsum(0).tolist()
    parts = [context.call(_aten.slice.Tensor, x, axis, end - one, end) for one, end in zip(sizes, ends, strict=True)]
    if not context.has_input(node, 1) and not context.attribute(node, "keepdims", 1):
        parts = [reshaped(context, part, [[*one.shape[:axis], *one.shape[axis + 1 :]] for one in part.trials]) for part in parts]
    return _kept(context, node, parts)


@operator("", "SequenceConstruct")
def _construct(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    return _kept(context, node, [context.input(node, index) for index in range(len(node.input))])


@operator("", "SequenceAt")
def _at(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    parts, place = context.sequence(node, 0), int(context.known(node, context.input(node, 1)))
    if not -len(parts) <= place < len(parts):
        raise context.refusal(node, f"its position is {place}, but its sequence has {len(parts)} tensors")
    return [parts[place]]


@operator("", "SequenceLength")
def _length(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    return [context.constant(torch.tensor(len(context.sequence(node, 0))))]


@operator("", "ConcatFromSequence")
def _concat(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    parts, is_new = context.sequence(node, 0), bool(context.attribute(node, "new_axis", 0))
    axis = checked_axis(context, node, context.attribute(node, "axis"), parts[0].rank + is_new)
    return [context.call(_aten.stack.default if is_new else _aten.cat.default, list(parts), axis)]


def _kept(context: ImportContext, node: NodeProto, parts: list[Value]) -> Sequence[Value | None]:
    context.sequences[node.output[0]] = parts
    return [None]
