"""ALiBi's slopes among a graph's parameters: they are multiplied with positions, so they stay in float32."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph


def slopes_of(model: ModelGraph) -> set[fx.Node]:
    """The parameters that attentions of a graph, or of its blocks, read as slopes, whatever those operators are for."""
    return {node for node in _read_as_slopes(model.module) if node.op == "get_attr"}


def _read_as_slopes(module: fx.GraphModule) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "call_module":
            block: Any = module.get_submodule(str(node.target))
            inner = _read_as_slopes(block)
            found |= {given for own, given in zip(block.graph.find_nodes(op="placeholder"), node.args, strict=True) if own in inner}
        elif isinstance(node.target, torch._ops.OpOverload):
            names = [argument.name for argument in node.target._schema.arguments]
            found |= {given for name, given in zip(names, node.args, strict=False) if name == "slopes" and isinstance(given, fx.Node)}
    return found
