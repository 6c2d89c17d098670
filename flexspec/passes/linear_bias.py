"""A bias added behind a linear becomes the linear's own."""

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.passes.match import either_order, is_call, is_parameter

_aten = torch.ops.aten


def fold_bias(model: ModelGraph) -> int:
    """linear(x, weight) + a parameter [out] → linear(x, weight, bias).

    Returns:
        Matches.
    """
    matches = 0
    for total in model.nodes(_aten.add.Tensor):
        for linear, bias in [] if total.kwargs else either_order(total, _aten.add.Tensor):
            if _has_no_bias(linear) and is_parameter(bias) and fake(bias).shape == fake(linear).shape[-1:]:
                total.replace_all_uses_with(model.emit(_aten.linear.default, (*linear.args[:2], bias), before=total))
                matches += 1
                break
    model.finish()
    return matches


def _has_no_bias(node: fx.Node) -> bool:
    return is_call(node, _aten.linear.default) and (*node.args, None)[2] is None and len(node.users) == 1
