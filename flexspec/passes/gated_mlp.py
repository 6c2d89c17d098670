"""Recognition of activations written out, and of the gated MLP."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, expression, fake, is_tensor
from flexspec.ir.ops import GATED_ACTIVATION
from flexspec.passes.manager import Recognised
from flexspec.passes.match import either_order, is_call, is_parameter, scaled

_aten = torch.ops.aten


def recognise_gelu(model: ModelGraph) -> Recognised:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))) → `aten.gelu(x, approximate="tanh")`.

    Returns:
        Matches, and how many hyperbolic tangents of a cubic there were.
    """
    tangents = [node for node in model.nodes(_aten.tanh.default) if _cubic(node.args[0]) is not None]
    matches = 0
    for tangent in tangents:
        x = _cubic(tangent.args[0])
        last = _outer(tangent, x)
        if last is None:
            continue
        gelu = model.emit(_aten.gelu.default, (x,), before=last, kwargs={"approximate": "tanh"})
        last.replace_all_uses_with(gelu)
        matches += 1
    model.finish()
    return Recognised(matches, len(tangents))


def _cubic(node: Any) -> Any:
    inner = scaled(node, 0.7978845608028654)
    for x, cube in either_order(inner, _aten.add.Tensor):
        power = scaled(cube, 0.044715)
        if is_call(power, _aten.pow.Tensor_Scalar) and power.args == (x, 3.0):
            return x
    return None


def _outer(tangent: fx.Node, x: fx.Node) -> fx.Node | None:
    for plus_one in tangent.users:
        if any(one == 1 for _, one in either_order(plus_one, _aten.add.Tensor)):
            for last in plus_one.users:
                if any(scaled(half, 0.5) is x for half, _ in either_order(last, _aten.mul.Tensor)):
                    return last
    return None


def activation_name(node: Any) -> str | None:
    """The dialect's name of a pointwise activation call, or None."""
    if is_call(node, _aten.silu.default):
        return "silu"
    if is_call(node, _aten.relu.default):
        return "relu"
    if is_call(node, _aten.gelu.default):
        return "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu"
    return None


def _is_like(operand: Any, product: fx.Node) -> bool:
    """Whether a factor is a value of its own for each element of the product."""
    if not is_tensor(operand) or is_parameter(operand):
        return False
    return list(map(expression, fake(operand).shape)) == list(map(expression, fake(product).shape))


def recognise_gated_mlp(model: ModelGraph) -> Recognised:
    """act(gate) * up → `flexspec::gated_activation`.

    Returns:
        Matches, and how many there should be: as many as activations multiplied with another value, and as gated MLPs in the module.
    """
    candidates = [
        product
        for node in model.graph.nodes
        if activation_name(node) is not None
        for product in node.users
        if is_call(product, _aten.mul.Tensor) and all(_is_like(arg, product) for arg in product.args)
    ]
    matches = 0
    for product in candidates:
        for act, up in either_order(product, _aten.mul.Tensor):
            name = activation_name(act)
            if name is not None and sum(user.op != "output" for user in act.users) == 1:
                gated = model.emit(GATED_ACTIVATION, (act.args[0], up, name), before=product)
                product.replace_all_uses_with(gated)
                matches += 1
                break
    model.finish()
    return Recognised(matches, max(len(candidates), model.facts.patterns.get("gated_mlp", 0)))
