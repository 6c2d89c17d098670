"""Import of an ONNX graph into a PyTorch module `forward(input_ids, position_ids) -> logits` of ATen operators and the dialect's attention.

The graph is run once at a few sizes (`values`); what comes out has no cache, no mask and no lengths in it, whatever the exporter was.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
from onnx import NodeProto, TensorProto
from torch import Tensor, fx

import flexspec.ir.onnx.operators  # noqa: F401 - fills the table
from flexspec.errors import UsageError
from flexspec.ir.graph import Source
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.emission import unrecognised
from flexspec.ir.onnx.inputs import add_inputs
from flexspec.ir.onnx.registry import OPERATORS
from flexspec.ir.onnx.tensor_bytes import tensor_value
from flexspec.ir.onnx.values import Trial, Value
from flexspec.ir.ops import ATTENTION

_SHORT = (Trial(3, 7), Trial(5, 11))
_LONG_BATCH = 1
_LONGEST = 4200
"""Masks are looked at up to this length."""


def import_graph(model: onnx.ModelProto, *, path: Path, name: str) -> fx.GraphModule:
    """Import the main graph of a model.

    Args:
        model: as `read_onnx` gives it.
        path: of its file; external data lies beside it, and stays there, memory-mapped.
        name: what messages call the model.

    Returns:
        An executable module. Each attention has its query and KV heads in `meta["heads"]`, the output `meta["vocab_size"]`.

    Raises:
        UsageError: naming all operators that are not supported, or the node that breaks a rule.
    """
    logits = _logits_output(model.graph, name)
    nodes = _needed(model.graph, logits)
    _check_supported(nodes, name)
    opsets = {"" if one.domain == "ai.onnx" else one.domain: one.version for one in model.opset_import}
    tensors = {tensor.name: tensor_value(tensor, path) for tensor in model.graph.initializer}
    long = Trial(_LONG_BATCH, _long_length(nodes, tensors))
    try:
        context = _run(model.graph, nodes, tensors, ImportContext(name, path, opsets, (*_SHORT, long)))
    except UsageError:
        # Tables of positions may end before; what is wrong at all lengths is found without it.
        context = _run(model.graph, nodes, tensors, ImportContext(name, path, opsets, _SHORT))
    return _finish(context, context.values[logits])


def _run(graph: onnx.GraphProto, nodes: Sequence[NodeProto], tensors: Mapping[str, Tensor], context: ImportContext) -> ImportContext:
    add_inputs(context, graph)
    for tensor_name, tensor in tensors.items():
        context.values[tensor_name] = context.constant(tensor)
        context.emission.names[Source(tensor)] = tensor_name
    for node in nodes:
        _import_node(context, node)
    return context


def _import_node(context: ImportContext, node: NodeProto) -> None:
    try:
        results = OPERATORS[_domain(node), node.op_type](context, node)
    except UsageError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError, ZeroDivisionError, AssertionError, NotImplementedError) as error:
        given = [context.values.get(one) for one in node.input if one]
        shapes = ", ".join(f"{one.dtype} {list(one.trials[0].shape)}" for one in given if one is not None)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise context.refusal(node, f"it can't take inputs {shapes}: {reason}") from error
    for output, result in zip(node.output, results, strict=False):
        context.values[output] = result


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _logits_output(graph: onnx.GraphProto, name: str) -> str:
    outputs = [str(one.name) for one in graph.output]
    if "logits" in outputs:
        return "logits"
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    alike = [str(one.name) for one in graph.output if one.type.tensor_type.elem_type in floats and len(one.type.tensor_type.shape.dim) == 3]
    if len(alike) != 1:
        raise UsageError(f"model {name}: none of its outputs ({', '.join(outputs) or 'none'}) is logits [batch, length, vocabulary]")
    return alike[0]


def _needed(graph: onnx.GraphProto, output: str) -> list[NodeProto]:
    """The nodes that an output is computed by, in order."""
    wanted, kept = {output}, []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(one for one in node.input if one)
    return kept[::-1]


def _check_supported(nodes: Sequence[NodeProto], name: str) -> None:
    missing: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if (_domain(node), node.op_type) not in OPERATORS:
            missing.setdefault((_domain(node), node.op_type), []).append(node.name or node.output[0])
    if missing:
        listed = "; ".join(f"{domain or 'ai.onnx'}::{kind} ({', '.join(names)})" for (domain, kind), names in missing.items())
        raise UsageError(f"model {name}: operators that are not supported, with their nodes: {listed}")


def _long_length(nodes: Sequence[NodeProto], tensors: Mapping[str, Tensor]) -> int:
    """A length past every window that a constant of the graph could be."""
    compared = {"Add", "Sub", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Trilu"}
    constants = dict(tensors)
    for node in nodes:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_type in (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT):
                    if len(attribute.t.dims) == 0 or list(attribute.t.dims) == [1]:
                        constants[node.output[0]] = torch.from_numpy(onnx.numpy_helper.to_array(attribute.t).copy())
    longest = 0
    for node in nodes:
        if node.op_type in compared:
            for one in node.input:
                tensor = constants.get(one)
                if tensor is not None and tensor.numel() == 1 and float(tensor).is_integer() and abs(int(tensor)) <= _LONGEST:
                    longest = max(longest, abs(int(tensor)))
    return max(longest + 3, 19)


def _finish(context: ImportContext, logits: Value | None) -> fx.GraphModule:
    if logits is None or logits.is_token_free:
        raise UsageError(f"model {context.model}: its logits do not depend on the tokens")
    if logits.rank != 3 or any(tuple(one.shape[:2]) != tuple(trial) for one, trial in zip(logits.trials, context.trials, strict=True)):
        raise UsageError(f"model {context.model}: its logits are {list(logits.trials[0].shape)}, not [batch, length, vocabulary]")
    graph = context.emission.graph
    graph.output(context.node_of(logits))
    graph.eliminate_dead_code()
    heads = {node: tuple(one.meta["value"].dim(2) for one in node.args[:2]) for node in graph.nodes if node.target == ATTENTION}
    for node in graph.nodes:
        if node.target is unrecognised:
            users = ", ".join(user.name for user in node.users)
            raise UsageError(f"model {context.model}: a mask or a position that {users} reads is of no known form")
        node.meta.clear()
        if node.target == ATTENTION:
            node.meta["heads"] = heads[node]
    for attribute in graph.find_nodes(op="get_attr"):
        if not attribute.users:
            graph.erase_node(attribute)
    used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    for attribute_name, _ in [*context.emission.root.named_parameters(), *context.emission.root.named_buffers()]:
        if attribute_name not in used:
            delattr(context.emission.root, attribute_name)
    graph.output_node().meta["vocab_size"] = logits.dim(-1)
    graph.lint()
    return fx.GraphModule(context.emission.root, graph, "OnnxDecoder")
