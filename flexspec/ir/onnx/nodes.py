"""Importing the nodes of a graph, or of a branch of one, in order."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from torch import Tensor

from flexspec.errors import UsageError
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.lazy import within
from flexspec.ir.onnx.registry import OPERATOR_ERRORS, OPERATORS
from flexspec.ir.onnx.tensor_bytes import tensor_value


def tensors_of(graph: GraphProto, path: Path) -> list[tuple[TensorProto, Tensor]]:
    """The constants of a graph, or of a branch of one, of the model in `path`."""
    return [(one, tensor_value(one, path)) for one in graph.initializer]


def add_tensors(context: ImportContext, tensors: Iterable[tuple[TensorProto, Tensor]]) -> None:
    """Give the context constants by their names."""
    for proto, tensor in tensors:
        context.add_tensor(proto.name, tensor, four_bits=proto.data_type in (TensorProto.INT4, TensorProto.UINT4))


def import_nodes(context: ImportContext, nodes: Sequence[NodeProto]) -> None:
    """Give the context the values that nodes make.

    Raises:
        UsageError: with the node that breaks a rule, and the shapes that it was given.
    """
    for node in nodes:
        _import_node(context, node)


def needed(graph: GraphProto, outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that outputs are computed by, in order."""
    wanted, kept = set(outputs), []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(_read(node))
    return kept[::-1]


def _read(node: NodeProto) -> Iterator[str]:
    """What a node reads, in its branches too."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                yield from _read(inner)
            yield from (output.name for output in attribute.g.output)


def _import_node(context: ImportContext, node: NodeProto) -> None:
    if (node.domain, node.op_type) not in OPERATORS:
        raise context.refusal(node, "this operator is not supported")
    try:
        with within(context.budget):
            results = OPERATORS[node.domain, node.op_type](context, node)
    except UsageError:
        raise
    except OPERATOR_ERRORS as error:
        given = [context.values.get(one) for one in node.input if one]
        shapes = ", ".join(f"{one.dtype} {list(one.trials[0].shape)}" for one in given if one is not None)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise context.refusal(node, f"it can't take inputs {shapes}: {reason}") from error
    for output, result in zip(node.output, results, strict=False):
        context.values[output] = result
