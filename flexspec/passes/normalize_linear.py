"""One form for every linear layer: `aten.linear(x, weight [out, in], bias)`."""

import torch

from flexspec.ir.graph import ModelGraph, fake
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten


def normalize_linear(model: ModelGraph) -> tuple[int, int]:
    """Turn `addmm` and `mm` with a parameter (GPT-2's Conv1D) into `linear` with the transposed parameter.

    Linears lose dims of size 1 between tokens and columns.

    Returns:
        Matches, and how many products with a parameter there are.
    """
    products = model.nodes(_aten.addmm.default, _aten.mm.default, _aten.matmul.default)
    expected = [node for node in products if is_parameter(node.args[-1]) and fake(node.args[-1]).dim() == 2 and not node.kwargs]
    for node in expected:
        bias, x = (node.args[0], node.args[1]) if node.target == _aten.addmm.default else (None, node.args[0])
        weight = node.args[-1]
        assert isinstance(weight, torch.fx.Node)
        value = model.parameter(weight).t()
        transposed = model.add_parameter(f"{weight.target}_transposed", value, before=node, origin=("transposed", model.origin(weight)))
        linear = model.emit(_aten.linear.default, (x, transposed, bias), before=node)
        node.replace_all_uses_with(linear)
        model.graph.erase_node(node)
    for node in model.nodes(_aten.linear.default):
        between = list(fake(node).shape[1:-1])
        if between and all(isinstance(size, int) and size == 1 for size in between):
            _without_ones(model, node, between)
    model.finish()
    return len(expected), len(expected)


def _without_ones(model: ModelGraph, node: torch.fx.Node, between: list[int]) -> None:
    x, *rest = node.args
    flat = model.emit(_aten.reshape.default, (x, [-1, int(fake(x).shape[-1])]), before=node)
    linear = model.emit(_aten.linear.default, (flat, *rest), before=node, kwargs=dict(node.kwargs))
    node.replace_all_uses_with(model.emit(_aten.reshape.default, (linear, [-1, *between, int(fake(node).shape[-1])]), before=node))
    model.graph.erase_node(node)
