"""Import of an ONNX graph into a PyTorch module `forward(input_ids, position_ids) -> logits` of ATen operators and the dialect's attention.

The graph is run once at a few sizes (`values`); what comes out has no cache, no mask and no lengths in it, whatever the exporter was.
"""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import AttributeProto, NodeProto, TensorProto
from torch import Tensor, fx

import flexspec.ir.onnx.operators  # noqa: F401 - fills the table
from flexspec.errors import UsageError
from flexspec.ir.onnx.check import check_nodes, check_shapes
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.emission import changes_with_length, unrecognised
from flexspec.ir.onnx.exact_constants import keep_exact
from flexspec.ir.onnx.inputs import add_inputs
from flexspec.ir.onnx.last_token import of_all_tokens
from flexspec.ir.onnx.longest import UNLIMITED, ImportedGraph, longest_import
from flexspec.ir.onnx.node_reader import LengthError
from flexspec.ir.onnx.nodes import add_tensors, import_nodes, needed, tensors_of
from flexspec.ir.onnx.values import Trial, Value
from flexspec.ir.ops import ATTENTION

_SHORT = (Trial(3, 7), Trial(5, 12))
"""Such that no other small expression in batch and length gives the same numbers as a length or a batch."""


def import_graph(model: onnx.ModelProto, *, path: Path, name: str, longest: int | None = None) -> ImportedGraph:
    """Import the main graph of a model.

    Args:
        model: as `read_onnx` gives it.
        path: of its file; external data lies beside it, and stays there, memory-mapped.
        name: what messages call the model.
        longest: tokens of the longest text that is asked for, if that is known.

    Raises:
        UsageError: naming all operators that are not supported, or the node that breaks a rule.
    """
    logits = _logits_output(model.graph, name)
    nodes = needed(model.graph, [logits])
    opsets = {"" if one.domain == "ai.onnx" else one.domain: one.version for one in model.opset_import}
    tensors = tensors_of(model.graph, path)
    made: dict[tuple[str, ...], Tensor] = {}
    elements = sum(tensor.numel() for _, tensor in tensors) + model.ByteSize()

    check_nodes(model, nodes, ImportContext(name, path, opsets, _SHORT))

    def attempt(*longer: int) -> fx.GraphModule:
        trials = (*_SHORT, *(Trial(1, length) for length in longer))
        context = ImportContext(name, path, opsets, trials, elements=elements, made=made)
        add_inputs(context, model.graph)
        add_tensors(context, tensors)
        import_nodes(context, nodes)
        return _finish(context, context.values[logits], logits)

    # What is wrong at all lengths is said as such.
    attempt()
    check_shapes(model, name)
    return longest_import(
        attempt, _numbers(nodes, [tensor for _, tensor in tensors]), min(longest or UNLIMITED, UNLIMITED), _SHORT[-1].length
    )


def _logits_output(graph: onnx.GraphProto, name: str) -> str:
    outputs = {str(one.name): one.type.tensor_type for one in graph.output}
    if "logits" in outputs:
        return "logits"
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    alike = [one for one, kind in outputs.items() if kind.elem_type in floats and len(kind.shape.dim) == 3 and "hidden" not in one.lower()]
    called = [one for one in alike if "logits" in one.lower()]
    if len(alike) != 1 and len(called) != 1:
        raise UsageError(f"model {name}: none of its outputs ({', '.join(outputs) or 'none'}) is logits [batch, length, vocabulary]")
    return (called or alike)[0]


def _numbers(nodes: Sequence[NodeProto], tensors: Sequence[Tensor]) -> set[int]:
    """Sizes of tables, which may be what ends the lengths that a graph can be run at."""
    held = [list(attribute.t.dims) for node in nodes for attribute in node.attribute if attribute.type == AttributeProto.TENSOR]
    return {int(size) for dims in (*held, *(tensor.shape for tensor in tensors)) for size in dims}


def _finish(context: ImportContext, logits: Value | None, output: str) -> fx.GraphModule:
    if logits is None or logits.is_token_free:
        raise UsageError(f"model {context.model}: its logits do not depend on the tokens")
    logits = of_all_tokens(context, logits)
    if (
        logits.rank != 3
        or not isinstance(logits.shape[-1], int)
        or any(tuple(one.shape[:2]) != tuple(trial) for one, trial in zip(logits.trials, context.trials, strict=True))
    ):
        raise UsageError(f"model {context.model}: its logits are {list(logits.trials[0].shape)}, not [batch, length, vocabulary]")
    rows = {table.dim(0) for table in context.embeddings}
    if "logits" not in output.lower() and rows and logits.dim(-1) not in rows:
        raise UsageError(
            f"model {context.model}: its output {output!r} has {logits.dim(-1)} columns, but there are {max(rows)} tokens: these are "
            "hidden states, not logits; export it with its language-modelling head"
        )
    graph = context.emission.graph
    graph.output(context.node_of(logits))
    graph.eliminate_dead_code()
    heads = {node: tuple(one.meta["value"].dim(2) for one in node.args[:2]) for node in graph.nodes if node.target == ATTENTION}
    for node in graph.nodes:
        users = ", ".join(user.name for user in node.users)
        if node.target is unrecognised:
            raise UsageError(f"model {context.model}: a mask or a position that {users} reads is of no known form")
        if node.target is changes_with_length:
            raise LengthError(f"model {context.model}: what {users} reads for a position depends on how long the text is")
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
    keep_exact(graph, context.emission.root)
    graph.output_node().meta["vocab_size"] = logits.dim(-1)
    graph.lint()
    module = fx.GraphModule(context.emission.root, graph, "OnnxDecoder")
    for buffer_name in sorted(context.emission.root._non_persistent_buffers_set):  # which the copy into a graph module forgets
        tensor = module.get_buffer(buffer_name)
        delattr(module, buffer_name)
        module.register_buffer(buffer_name, tensor, persistent=False)
    return module
