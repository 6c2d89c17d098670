"""Outlining: the repeated block becomes one submodule per structural kind, called once a layer with that layer's weights.

A block is cut where exactly one value that depends on the tokens (the residual stream) is alive; values that depend on
positions only (rotary tables) are shared by all blocks. Blocks that run the same operators with the same constants are
of one kind; the layer's index is an argument. A hidden state that is a block's last value is the block's result; of one
inside it the block returns a further result. Neither counts as alive after the block.
"""

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from flexspec.ir.graph import ModelGraph, depends_on
from flexspec.ir.ops import TREE_ATTENTION
from flexspec.passes.blocks import LAYER_ARG, cut_places, split_layers, structure_of
from flexspec.passes.manager import Recognised


def outline(model: ModelGraph) -> Recognised:
    """Move each layer's operators into a submodule `block_<kind>`; none, if attentions can't be parted.

    Returns:
        Layers outlined, and how many attentions the graph has.
    """
    tokens = depends_on(model.graph, model.token_inputs)
    gathered = depends_on(model.graph, model.inputs("output_rows"))
    sequence = [node for node in model.graph.nodes if node in tokens - gathered and node.op == "call_function"]
    layers = split_layers(sequence, cut_places(sequence, model.inputs("features")))
    kinds: dict[Any, str] = {}
    for nodes in layers:
        structure, inputs = structure_of(nodes)
        results = _results(nodes)
        key = (structure, tuple(nodes.index(node) for node in results))
        if key not in kinds:
            kinds[key] = f"block_{len(kinds)}"
            model.module.add_module(kinds[key], _block(nodes, inputs, results))
        _call(model, kinds[key], nodes, inputs, results)
    model.finish()
    expected = sum(node.target == TREE_ATTENTION for node in sequence)
    return Recognised(len(layers), expected)


def _results(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The last value, then the hidden states before it."""
    return [nodes[-1], *(node for node in nodes[:-1] if any(user.op == "output" for user in node.users))]


def _block(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], results: Sequence[fx.Node]) -> fx.GraphModule:
    """The submodule of a kind: placeholders for the inputs in order, then the layer's index; one result, or a tuple of several."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(inputs):
        values[node] = graph.placeholder(f"input_{i}")
        values[node].meta = dict(node.meta)
    layer = graph.placeholder("layer")
    layer.meta["val"] = 0
    for node in nodes:
        values[node] = graph.node_copy(node, lambda old: values[old])
        if node.target == TREE_ATTENTION:
            values[node].update_arg(LAYER_ARG, layer)
    graph.output(values[results[0]] if len(results) == 1 else tuple(values[node] for node in results))
    return fx.GraphModule({}, graph)


def _call(model: ModelGraph, name: str, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], results: Sequence[fx.Node]) -> None:
    layer = next(node.args[LAYER_ARG] for node in nodes if node.target == TREE_ATTENTION)
    with model.graph.inserting_after(nodes[-1]):
        call = model.graph.call_module(name, (*inputs, layer))
    if len(results) == 1:
        call.meta["val"] = results[0].meta["val"]
        results[0].replace_all_uses_with(call)
    else:
        call.meta["val"] = tuple(node.meta["val"] for node in results)
        for i, node in enumerate(results):
            item = model.emit(operator.getitem, (call, i), before=call.next)
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in nodes)
    for node in reversed(nodes):
        model.graph.erase_node(node)
