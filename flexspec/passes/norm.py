"""Recognition of RMSNorm and LayerNorm from their elementwise forms."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import RMS_NORM
from flexspec.passes.manager import Recognised
from flexspec.passes.match import either_order, is_call, is_parameter

_aten = torch.ops.aten


def recognise_norm(model: ModelGraph) -> Recognised:
    """x * rsqrt(mean(x²) + eps) * weight → `flexspec::rms_norm`; where x is less its mean: → `aten.layer_norm`, as most models have it.

    Returns:
        Matches, and how many there should be: as many as reciprocal square roots in the graph, and as norms in the module.
    """
    matches = _library_norms(model)
    roots = model.nodes(_aten.rsqrt.default)
    expected = max(matches + len(roots), model.facts.patterns.get("rms_norm", 0))
    for root in roots:
        found = _match(root)
        if found is None:
            continue
        last, x, weight, eps = found
        whole = _centred(x)
        if whole is None:
            size = int(fake(x).shape[-1])
            ones = weight or model.add_parameter("ones", torch.ones(size), before=last, origin=("ones", size))
            norm = model.emit(RMS_NORM, (x, ones, eps), before=last)
        else:
            size = int(fake(x).shape[-1])
            vector = weight if weight is not None and fake(weight).dim() == 1 else None
            norm = model.emit(_aten.layer_norm.default, (whole, [size], vector, None, eps), before=last)
            if weight is not vector:
                norm = model.emit(_aten.mul.Tensor, (norm, weight), before=last)
        last.replace_all_uses_with(norm)
        matches += 1
    model.finish()
    return Recognised(matches, expected)


def _library_norms(model: ModelGraph) -> int:
    """PyTorch's own RMSNorm, already one operator."""
    calls = [node for node in model.nodes(_aten.rms_norm.default) if len(node.args) > 2 and is_parameter(node.args[2])]
    for node in calls:
        x, _, weight, eps = (*node.args, None)[:4]
        norm = model.emit(RMS_NORM, (x, weight, torch.finfo(torch.float32).eps if eps is None else eps), before=node)
        node.replace_all_uses_with(norm)
        model.graph.erase_node(node)
    return len(calls)


def _match(root: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None, float] | None:
    for mean, eps in either_order(root.args[0], _aten.add.Tensor):
        if isinstance(eps, float) and is_call(mean, _aten.mean.dim) and list(mean.args[1]) in ([-1], [fake(mean).dim() - 1]):
            x = _squared(mean.args[0])
            if x is None:
                return None
            for scaled in root.users:
                if any(_same(operand, x) for operand, _ in either_order(scaled, _aten.mul.Tensor)):
                    return _weighted(scaled, x, eps)
    return None


def _same(node: Any, other: fx.Node) -> bool:
    """The same value, or a difference of the same values."""
    return node is other or (is_call(node, _aten.sub.Tensor) and is_call(other, _aten.sub.Tensor) and node.args == other.args)


def _centred(node: fx.Node) -> fx.Node | None:
    """x of x - mean(x) over the last dim."""
    if not is_call(node, _aten.sub.Tensor) or len(node.args) != 2 or node.kwargs:
        return None
    x, mean = node.args
    if not (isinstance(x, fx.Node) and is_call(mean, _aten.mean.dim) and mean.args[0] is x):  # type: ignore[union-attr]
        return None
    return x if list(mean.args[1]) in ([-1], [fake(x).dim() - 1]) else None  # type: ignore[union-attr,arg-type]


def _squared(node: Any) -> Any:
    if is_call(node, _aten.pow.Tensor_Scalar) and node.args[1] == 2:
        return node.args[0]
    if is_call(node, _aten.mul.Tensor) and node.args[0] is node.args[1]:
        return node.args[0]
    return None


def _weighted(scaled: fx.Node, x: fx.Node, eps: float) -> tuple[fx.Node, fx.Node, fx.Node | None, float]:
    for last in scaled.users:
        for weight, _ in either_order(last, _aten.mul.Tensor):
            if is_parameter(weight) and (fake(weight).dim() == 1 or (_centred(x) is not None and fake(weight).dim() == 2)):
                return last, x, weight, eps
    return scaled, x, None, eps
