"""Reading an ONNX file: everything that can be wrong with it is said before anything is built from it."""

from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, inliner

from flexspec.errors import UsageError
from flexspec.ir.onnx.tensor_bytes import check_tensor

OPSETS = range(11, 25)
# Exporters put these operators of onnxruntime into the default domain, which has none of that name.
_MISPLACED = {"SimplifiedLayerNormalization"}
_NOTHING: Mapping[str, None] = {}
_DEFAULT_DOMAINS = {"", "ai.onnx"}


def read_onnx(path: Path) -> ModelProto:
    """The model in an ONNX file, its functions inlined, its weights where they are: in it or, as external data, in files beside it.

    The nodes' domains are "" and "com.microsoft" as they should be: `ai.onnx` is written "".

    Raises:
        UsageError: if it isn't an ONNX file, is cut short, has no graph, has a cycle, reads values that nothing makes, has another
            opset than 11 to 24, or has external data outside its folder or missing.
    """
    model = _parse(path)
    if not _is_text(model):
        raise UsageError(f"{path} holds names that are no text: it is damaged; export or fetch it again")
    if not model.HasField("graph") or not model.graph.node:
        raise UsageError(f"{path} holds no graph: it is empty or not an ONNX model; export it again")
    if model.ir_version > onnx.IR_VERSION:
        versions = f"IR version {model.ir_version}; versions up to {onnx.IR_VERSION} can be read"
        raise UsageError(f"{path} is of {versions}: export it again with an older one")
    _check_opset(model, path)
    model = _inlined(model, path)
    for node in _all_nodes(model.graph):
        _set_domain(node)
    _check_names(model.graph, path)
    for tensor in _tensors(model.graph):
        check_tensor(tensor, path)
    return model


def opset_of(model: ModelProto) -> int:
    """The version of the default operators that the model is written in."""
    return max((entry.version for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS), default=1)


def label(node: NodeProto) -> str:
    """What messages call a node: its operator and its name, or what it makes."""
    name = f"{node.name!r}" if node.name else f"making {next((out for out in node.output if out), '?')!r}"
    return f"{f'{node.domain}::' if node.domain else ''}{node.op_type} {name}"


def _parse(path: Path) -> ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise UsageError(f"{path} is not an ONNX file, is damaged or cut short: export or fetch it again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read ({error})") from error


def _is_text(message: Message) -> bool:
    """Whether all strings in a message are UTF-8; others are given as bytes."""
    if isinstance(message, TensorProto):
        # Its other fields are its contents, which may be large.
        return isinstance(message.name, str) and all(_is_text(entry) for entry in message.external_data)
    for entry, value in message.ListFields():
        if entry.type == FieldDescriptor.TYPE_STRING:
            texts = [value] if isinstance(value, str | bytes) else value
            if not all(isinstance(text, str) for text in texts):
                return False
        elif entry.type == FieldDescriptor.TYPE_MESSAGE:
            parts = [value] if isinstance(value, Message) else value
            if not all(_is_text(part) for part in parts):
                return False
    return True


def _check_opset(model: ModelProto, path: Path) -> None:
    if any(entry.domain in _DEFAULT_DOMAINS for entry in model.opset_import) and opset_of(model) not in OPSETS:
        raise UsageError(
            f"{path} is written in opset {opset_of(model)}; opsets {OPSETS.start} to {OPSETS.stop - 1} can be imported: "
            "export it again with one of these, or convert it with onnx.version_converter"
        )
    if not any(entry.domain in _DEFAULT_DOMAINS for entry in model.opset_import):
        raise UsageError(f"{path} does not say its opset: it is damaged; export it again")


def _inlined(model: ModelProto, path: Path) -> ModelProto:
    """The model with calls of its own functions replaced by their bodies."""
    if not model.functions:
        return model
    bodies = {(function.domain, function.name): function for function in model.functions}
    finished: set[tuple[str, str]] = set()

    def visit(key: tuple[str, str], callers: tuple[tuple[str, str], ...]) -> None:
        if key in callers:
            raise UsageError(f"{path}: function {key[0]}::{key[1]} calls itself: the file is damaged; export it again")
        if key in bodies and key not in finished:
            for node in bodies[key].node:
                visit((node.domain, node.op_type), (*callers, key))
            finished.add(key)

    for key in bodies:
        visit(key, ())
    try:
        inlined: ModelProto = inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, DecodeError) as error:
        raise UsageError(f"{path}: its functions can't be inlined ({error}); export it again") from error
    return inlined


def _set_domain(node: NodeProto) -> None:
    if node.domain in _DEFAULT_DOMAINS:
        node.domain = "com.microsoft" if node.op_type in _MISPLACED else ""


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for inner in _subgraphs(node):
            yield from _all_nodes(inner)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for inner in _subgraphs(node):
            yield from _tensors(inner)


def _check_names(graph: GraphProto, path: Path, outer: Mapping[str, None] = _NOTHING) -> None:
    """Every value is made once, before it is read."""
    given = [*(entry.name for entry in graph.input), *(entry.name for entry in graph.initializer)]
    given += [entry.values.name for entry in graph.sparse_initializer]
    own = dict.fromkeys(given)
    twice = [name for name, count in Counter(one.name for one in graph.initializer).items() if count > 1]
    if twice:
        raise UsageError(f"{path}: tensor {twice[0]!r} is there twice: the file is damaged; export it again")
    # What is around a branch is looked up, not copied: there may be many branches.
    known = ChainMap(own, outer)  # type: ignore[arg-type]
    makers = {output: node for node in graph.node for output in node.output if output}
    missing: list[str] = []
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                if name in makers:
                    raise UsageError(_order_message(node, name, makers, path))
                missing.append(f"{name!r}, read by {label(node)}")
        for inner in _subgraphs(node):
            _check_names(inner, path, known)
        for name in node.output:
            if name and name in known and name not in outer:
                raise UsageError(f"{path}: value {name!r} is made twice, again by {label(node)}: the file is damaged; export it again")
            own[name] = None
    missing += [f"{entry.name!r}, an output of the graph" for entry in graph.output if entry.name not in known]
    if missing:
        raise UsageError(f"{path}: nothing makes {'; '.join(missing)}: the file is damaged; export it again")


def _order_message(node: NodeProto, name: str, makers: dict[str, NodeProto], path: Path) -> str:
    maker = makers[name]
    reached: set[str] = set()
    waiting = list(maker.input)
    while waiting:
        value = waiting.pop()
        if value in makers and value not in reached:
            reached.add(value)
            waiting += makers[value].input
    if any(output in reached for output in node.output) or node is maker:
        return f"{path}: the graph has a cycle: {label(node)} reads {name!r}, which depends on it; export it again"
    return (
        f"{path}: its nodes are not topologically sorted: {label(node)} reads {name!r}, which {label(maker)} makes later; export it again"
    )
