"""The repeated blocks of a graph: where its layers begin and end, and which of them are of one kind.

A layer is cut where exactly one value that depends on the tokens, the residual stream, is alive. Layers that run the same operators
with the same constants are of one kind.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, depends_on
from flexspec.ir.ops import ATTENTION, RMS_NORM, TREE_ATTENTION
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_ROW_WISE = {RMS_NORM, _aten.layer_norm.default, _aten.linear.default}

LAYER_ARG = next(i for i, arg in enumerate(TREE_ATTENTION._schema.arguments) if arg.name == "layer")
"""Place of the layer's index among the arguments of tree attention."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer.

    Attributes:
        kind: `block_0`, `block_1`, … in the order in which kinds first occur.
        nodes: its operators in graph order; the last one's value is the residual stream.
    """

    kind: str
    nodes: Sequence[fx.Node]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A graph's operators that depend on the tokens, in graph order.

    Attributes:
        prologue: before the first layer: the embedding.
        layers: all of them.
        epilogue: after the last one: the final norm and the LM head.
    """

    prologue: Sequence[fx.Node]
    layers: Sequence[Layer]
    epilogue: Sequence[fx.Node]


def find_blocks(model: ModelGraph) -> Blocks:
    """Where the layers of a graph begin and end.

    Args:
        model: the flat recognised graph, before its linears are fused.

    Raises:
        UsageError: if it has layers between which more than one value is alive.
    """
    tokens = depends_on(model.graph, model.token_inputs)
    sequence = [node for node in model.graph.nodes if node in tokens and node.op == "call_function"]
    head = _head_start(model, sequence)
    body = sequence[:head]
    spans = split_layers(body, cut_places(body, model.inputs("features")))
    attentions = len(model.nodes(ATTENTION))
    if not spans or len(spans) < attentions:
        raise UsageError(
            f"model {model.facts.name} can't be divided over devices: its {attentions} attentions are not in layers that hand on one "
            "value each; give pp=1 and tp=1"
        )
    kinds: dict[Any, str] = {}
    layers = [Layer(kind=kinds.setdefault(structure_of(nodes)[0], f"block_{len(kinds)}"), nodes=nodes) for nodes in spans]
    start = sequence.index(spans[0][0])
    return Blocks(prologue=sequence[:start], layers=layers, epilogue=sequence[start + sum(map(len, spans)) :])


def fingerprint(blocks: Blocks, kinds: Sequence[str] | None = None) -> str:
    """Identifies a model's structure, whatever its weights: its operators with their sizes, and the order of its layers.

    Args:
        blocks: of its flat recognised graph, or of one with layers of the same kinds.
        kinds: of the model's layers; None: those of the graph.
    """
    layers = {layer.kind: layer.nodes for layer in reversed(blocks.layers)}
    places = {"embedding": blocks.prologue, "head": blocks.epilogue, **dict(sorted(layers.items()))}
    parts = [(name, [_sizes(node) for node in nodes]) for name, nodes in places.items()]
    order = list(kinds) if kinds is not None else [layer.kind for layer in blocks.layers]
    return hashlib.sha256(repr((parts, order)).encode()).hexdigest()[:16]


def _sizes(node: fx.Node) -> Any:
    """An operator, and the sizes of what it reads and gives, without those that depend on the batch."""

    def sizes(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return [dim if isinstance(dim, int) else None for dim in value.shape]
        return [sizes(one) for one in value] if isinstance(value, list | tuple) else None

    return str(node.target), [sizes(arg.meta["val"]) for arg in node.all_input_nodes], sizes(node.meta["val"])


def cut_places(sequence: Sequence[fx.Node], given: Sequence[fx.Node]) -> list[int]:
    """Indices i such that sequence[i - 1] is all of what was there or made before sequence[i] that is used from there on.

    Args:
        sequence: operators in graph order.
        given: inputs of the graph that operators may read at any place.
    """
    index = {node: i for i, node in enumerate(sequence)}

    def last_use(node: fx.Node, default: int) -> int:
        return max((index.get(user, len(sequence)) for user in node.users if user.op != "output"), default=default)

    found: list[int] = []
    furthest = max((last_use(node, -1) for node in given), default=-1)
    for i, node in enumerate(sequence, start=1):
        until = last_use(node, i - 1)
        if furthest < i <= until:
            found.append(i)
        furthest = max(furthest, until)
    return found


def split_layers(sequence: Sequence[fx.Node], cuts: Sequence[int]) -> list[list[fx.Node]]:
    """The layers, one for each attention, in a sequence that can be cut at some places; [] if attentions can't be parted.

    The last layer ends where it is like another one, else at the last place.
    """
    anchors = [i for i, node in enumerate(sequence) if node.target in (ATTENTION, TREE_ATTENTION)]
    starts = [max((cut for cut in cuts if cut <= anchor), default=0) for anchor in anchors]
    if not anchors or len(set(starts)) < len(starts):
        return []
    layers = [list(sequence[start:end]) for start, end in pairwise(starts)]
    known = {structure_of(nodes)[0] for nodes in layers}
    tails = [list(sequence[starts[-1] : cut]) for cut in cuts if cut > anchors[-1]]
    last = next((nodes for nodes in tails if structure_of(nodes)[0] in known), tails[-1] if tails else None)
    return layers if last is None else [*layers, last]


def structure_of(nodes: Sequence[fx.Node]) -> tuple[Any, list[fx.Node]]:
    """A hashable form of operators, and the nodes outside that they read, in order of first use.

    It holds the operators, their constants but for a layer's index, how they read each other, and the shapes of what they read.
    """
    inside = {node: i for i, node in enumerate(nodes)}
    inputs: dict[fx.Node, int] = {}

    def form(arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return ("value", inside[arg]) if arg in inside else ("input", inputs.setdefault(arg, len(inputs)))
        return tuple(form(one) for one in arg) if isinstance(arg, list | tuple) else arg

    calls = []
    for node in nodes:
        args = [None if node.target == TREE_ATTENTION and i == LAYER_ARG else form(arg) for i, arg in enumerate(node.args)]
        calls.append((node.target, tuple(args), tuple(sorted((name, form(arg)) for name, arg in node.kwargs.items()))))
    shapes = tuple(tuple(str(dim) for dim in node.meta["val"].shape) for node in inputs if isinstance(node.meta["val"], torch.Tensor))
    return (tuple(calls), shapes), list(inputs)


def _head_start(model: ModelGraph, sequence: Sequence[fx.Node]) -> int:
    """The first of the operators that lead, one after the other and each on one value alone, to the logits."""
    value = model.logits
    while value.target in _ROW_WISE or torch.Tag.pointwise in getattr(value.target, "tags", ()):
        sources = [arg for arg in value.all_input_nodes if not is_parameter(arg)]
        if len(sources) != 1:
            break
        value = sources[0]
    return sequence.index(value) + 1 if value in sequence else 0
