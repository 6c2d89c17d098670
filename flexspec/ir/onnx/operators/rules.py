"""What several importers of fused operators ask of a node before they trust it."""

from collections.abc import Collection, Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


def only_attributes(context: ImportContext, node: NodeProto, known: Collection[str]) -> None:
    """Refuse attributes that the importer would not heed.

    Raises:
        UsageError: naming them.
    """
    if unknown := sorted({attribute.name for attribute in node.attribute} - set(known)):
        raise context.refusal(node, f"its attributes {', '.join(unknown)} are not supported; {', '.join(sorted(known))} are")


def checked_axis(context: ImportContext, node: NodeProto, axis: object, rank: int) -> int:
    """An axis, which may count from the end, as one from 0.

    Raises:
        UsageError: if there are not so many dims.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise context.refusal(node, f"its axis is {axis}, but there are {rank} dims")
    return axis % rank


def no_input(context: ImportContext, node: NodeProto, index: int, name: str) -> None:
    """Refuse an optional input.

    Raises:
        UsageError: if it is given.
    """
    if context.has_input(node, index):
        raise context.refusal(node, f"its input {index} ({name}) is not supported")


def check_rank(context: ImportContext, node: NodeProto, value: Value, ranks: Collection[int], name: str) -> None:
    """Refuse an input of another rank.

    Raises:
        UsageError: with its shape and the ranks it may have.
    """
    if value.rank not in ranks:
        allowed = " or ".join(str(rank) for rank in sorted(ranks))
        raise context.refusal(node, f"{name} has shape {list(value.trials[0].shape)}; it must have {allowed} dims")


def check_shape(context: ImportContext, node: NodeProto, value: Value, shape: Sequence[int], name: str) -> None:
    """Refuse a weight of another shape.

    Raises:
        UsageError: with both shapes.
    """
    if value.shape != list(shape):
        raise context.refusal(node, f"{name} has shape {list(value.trials[0].shape)}; it must have {list(shape)}")


def last_dim(context: ImportContext, node: NodeProto, value: Value, name: str) -> int:
    """The last dim of an input, which must be the same at all batch sizes and lengths.

    Raises:
        UsageError: if it isn't, or there is none.
    """
    size = value.shape[-1] if value.rank else None
    if not isinstance(size, int):
        raise context.refusal(node, f"{name} has shape {list(value.trials[0].shape)}; its last dim must be a fixed number")
    return size


def positive_int(context: ImportContext, node: NodeProto, name: str, default: int | None = None) -> int:
    """An attribute that must be a positive integer.

    Raises:
        UsageError: if it is missing without a default, or not positive.
    """
    value = context.attribute(node, name, default)
    if not isinstance(value, int) or value < 1:
        raise context.refusal(node, f"its attribute {name} is {value!r}; it must be a positive integer")
    return value


def outputs(node: NodeProto, *given: Value | None) -> list[Value | None]:
    """What an importer gives, one for each of the node's outputs; those past the ones given are None."""
    return [*given, *[None] * len(node.output)][: len(node.output)]
