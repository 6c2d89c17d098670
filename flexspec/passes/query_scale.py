"""A constant factor on the queries (OPT) becomes part of the attention scale."""

import torch

from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import ATTENTION
from flexspec.passes.match import either_order, is_call

_aten = torch.ops.aten


def fold_query_scale(model: ModelGraph) -> int:
    """attention(reshape(q * c), …, scale) → attention(reshape(q), …, c * scale).

    Returns:
        Matches.
    """
    matches = 0
    for node in model.nodes(ATTENTION):
        view, scale = node.args[0], node.args[3]
        if not is_call(view, _aten.reshape.default):
            continue
        for x, factor in either_order(view.args[0], _aten.mul.Tensor):  # type: ignore[union-attr]
            if isinstance(factor, float):
                reshaped = model.emit(_aten.reshape.default, (x, view.args[1]), before=node)  # type: ignore[union-attr]
                node.update_arg(0, reshaped)
                node.update_arg(3, scale * factor)  # type: ignore[operator]
                matches += 1
                break
    model.finish()
    return matches
