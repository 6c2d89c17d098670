"""Checks of nodes one by one and of a graph's shapes, with onnx's own tools where these can be used.

onnx's checker of whole models refuses what exporters really write, such as operators of ONNX Runtime in the default domain and domains
that the model does not list, and stops at the first fault; so each node of the default domain is checked alone. onnx's shape inference
compares with the shapes that a file states, which some exporters state wrongly; so it is given none but those of inputs and weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, checker, helper, shape_inference

from flexspec.errors import UsageError
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.nodes import needed
from flexspec.ir.onnx.registry import OPERATOR_ERRORS, OPERATORS

_SMALL_BYTES = 1 << 10
_UNVERSIONED = "No Op registered for"


class NeedsInputError(Exception):
    """What an operator does can be said only from its inputs."""


class _NodeContext(ImportContext):
    """Where an importer's first look at an input ends its work: what it says until then is about the node alone."""

    def input(self, node: NodeProto, index: int) -> NoReturn:
        """Ends the importer's work."""
        raise NeedsInputError

    def sequence(self, node: NodeProto, index: int) -> NoReturn:
        """Likewise."""
        raise NeedsInputError


def check_nodes(model: ModelProto, nodes: Sequence[NodeProto], context: ImportContext) -> None:
    """Refuse operators that have no importer, and nodes with attributes or inputs that theirs does not support or ONNX does not know.

    Raises:
        UsageError: naming all of them.
    """
    missing: dict[tuple[str, str], list[str]] = {}
    refused: list[str] = []
    alone = _NodeContext(context.model, context.path, context.opsets, context.trials)
    rules = checker.C.CheckerContext()
    rules.ir_version = model.ir_version
    rules.opset_imports = {"": context.opset()}
    for node in _with_branches(nodes):
        if (node.domain, node.op_type) not in OPERATORS:
            missing.setdefault((node.domain, node.op_type), []).append(node.name or node.output[0])
        elif (why := _fault(node, rules, alone)) is not None:
            refused.append(why)
    if missing:
        listed = "; ".join(f"{domain or 'ai.onnx'}::{kind} ({', '.join(names)})" for (domain, kind), names in missing.items())
        refused.insert(0, f"operators that are not supported, with their nodes: {listed}")
    if refused:
        raise UsageError(f"model {context.model}: {'; '.join(refused)}")


def _with_branches(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those that the branches of an `If` need."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if node.op_type == "If" and attribute.type == AttributeProto.GRAPH:
                yield from _with_branches(needed(attribute.g, [str(one.name) for one in attribute.g.output]))


def _fault(node: NodeProto, rules: "checker.C.CheckerContext", alone: ImportContext) -> str | None:
    if not node.domain and not any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute):
        try:
            checker.check_node(node, rules)
        except checker.ValidationError as error:
            # onnxruntime writes some operators into models of an opset that is older than they are.
            if _UNVERSIONED not in str(error):
                return _alone(alone.refusal(node, str(error).strip().splitlines()[0]), alone)
    if node.op_type == "Constant":
        return None
    try:
        OPERATORS[node.domain, node.op_type](alone, node)
    except NeedsInputError:
        return None
    except UsageError as error:
        return _alone(error, alone)
    except OPERATOR_ERRORS:
        return None  # said with the shapes when it is imported
    return None


def _alone(refusal: UsageError, context: ImportContext) -> str:
    """What is wrong, without the model's name."""
    return str(refusal).removeprefix(f"model {context.model}: ")


def check_shapes(model: ModelProto, name: str) -> None:
    """Refuse a graph that breaks an operator's own rules about shapes and types.

    Raises:
        UsageError: with what onnx says, which names the node.
    """
    # Following data, onnx takes names that two branches have in common for one value.
    is_one = not any(attribute.type == AttributeProto.GRAPH for node in model.graph.node for attribute in node.attribute)
    try:
        shape_inference.infer_shapes(_without_weights(model), check_type=True, strict_mode=True, data_prop=is_one)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError) as error:
        reason = " ".join(str(error).replace("[ShapeInferenceError]", "").replace("[TypeInferenceError]", "").split())
        raise UsageError(f"model {name}: a node breaks its operator's rules: {reason}") from error
    except (ValueError, EncodeError):
        return  # larger than a message may be, which the import itself checks


def _without_weights(model: ModelProto) -> ModelProto:
    """The model's nodes, with inputs in place of all but small constants, and without the shapes that it says its values have."""
    given = {one.name for one in model.graph.initializer}
    graph = GraphProto(name=model.graph.name or "graph")
    graph.node.extend(model.graph.node)
    graph.input.extend(one for one in model.graph.input if one.name not in given)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL_BYTES and not tensor.external_data:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    for output in model.graph.output:
        graph.output.add(name=output.name).type.tensor_type.elem_type = output.type.tensor_type.elem_type
    return ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import, graph=graph)
