"""Outer products that a model writes as matrix products: position times rotary frequency, in some versions of transformers."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.match import is_call

_aten = torch.ops.aten


def outer_product(model: ModelGraph) -> tuple[int, int]:
    """matmul(a [..., n, 1], b [..., 1, m]) → a * b; broadcasting makes an `expand` of a's leading dims needless.

    Returns:
        Matches, and how many such products there were.
    """
    products = [node for node in model.nodes(_aten.matmul.default, _aten.bmm.default) if _has_one_term(node)]
    for node in products:
        a, b = (_unexpanded(arg) for arg in node.args)
        product = model.emit(_aten.mul.Tensor, (a, b), before=node)
        node.replace_all_uses_with(product)
        model.graph.erase_node(node)
    model.finish()
    return len(products), len(products)


def _has_one_term(node: fx.Node) -> bool:
    a, b = node.args
    if not (is_tensor(a) and is_tensor(b)) or fake(a).dim() != fake(b).dim() or fake(a).dim() < 2:
        return False
    inner = fake(a).shape[-1]
    return isinstance(inner, int) and inner == 1


def _unexpanded(node: Any) -> Any:
    """What was expanded, if only dims before the last two grew."""
    if is_call(node, _aten.expand.default) and fake(node.args[0]).dim() == fake(node).dim():
        source = node.args[0]
        if list(fake(source).shape[-2:]) == list(fake(node).shape[-2:]):
            return source
    return node
