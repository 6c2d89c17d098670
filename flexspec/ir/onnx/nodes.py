"""Importing the nodes of a graph, or of a branch of one, in order."""

from collections.abc import Iterator, Mapping, Sequence

from onnx import AttributeProto, GraphProto, NodeProto
from torch import Tensor

from flexspec.errors import UsageError
from flexspec.ir.graph import Source
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.lazy import within
from flexspec.ir.onnx.registry import OPERATORS


def add_tensors(context: ImportContext, tensors: Mapping[str, Tensor]) -> None:
    """Give the context constants by their names."""
    for name, tensor in tensors.items():
        context.values[name] = context.constant(tensor)
        context.emission.names[Source(tensor)] = name


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
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError, ZeroDivisionError, AssertionError, NotImplementedError) as error:
        given = [context.values.get(one) for one in node.input if one]
        shapes = ", ".join(f"{one.dtype} {list(one.trials[0].shape)}" for one in given if one is not None)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise context.refusal(node, f"it can't take inputs {shapes}: {reason}") from error
    for output, result in zip(node.output, results, strict=False):
        context.values[output] = result
