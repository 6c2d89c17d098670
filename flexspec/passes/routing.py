"""Recognition of softmax routing: which experts a token goes to."""

import operator
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.ir.ops import TOP_EXPERTS
from flexspec.passes.match import is_call

_aten = torch.ops.aten


def recognise_routing(model: ModelGraph) -> int:
    """topk(softmax(x)), divided by its sum or not, and softmax(topk(x)) → `flexspec::top_experts`.

    Routers that score otherwise stay as they are.

    Returns:
        Matches.
    """
    matches = 0
    for top in model.nodes(_aten.topk.default):
        scores, top_k = top.args[:2]
        if not _takes_largest_of_rows(top):
            continue
        values, ids = _item(top, 0), _item(top, 1)
        if values is None or ids is None:
            continue
        after = [user for user in values.users if user.op != "output"]
        weights: fx.Node | None
        if _is_softmax(scores):
            logits: Any = scores.args[0]  # type: ignore[union-attr]
            quotient = _quotient(values)
            weights, normalised = (values, False) if quotient is None else (quotient, True)
        else:
            logits, normalised = scores, True
            weights = after[0] if len(after) == len(values.users) == 1 and _is_softmax(after[0]) else None
        if weights is None:
            continue
        routed = model.emit(TOP_EXPERTS, (logits, top_k, normalised), before=top)
        weights.replace_all_uses_with(model.emit(operator.getitem, (routed, 0), before=top))
        ids.replace_all_uses_with(model.emit(operator.getitem, (routed, 1), before=top))
        matches += 1
    model.finish()
    return matches


def _takes_largest_of_rows(top: fx.Node) -> bool:
    given: tuple[Any, ...] = top.args[2:]
    dim, largest = (given[0] if given else -1), (given[1] if len(given) > 1 else True)
    return fake(top.args[0]).dim() == 2 and dim in (1, -1) and largest is True and not top.kwargs


def _item(node: fx.Node, index: int) -> fx.Node | None:
    return next((user for user in node.users if is_call(user, operator.getitem) and user.args[1] == index), None)


def _is_softmax(node: Any) -> bool:
    return (
        (is_call(node, _aten.softmax.int) or is_call(node, _aten._softmax.default))
        and fake(node).dim() == 2
        and node.args[1] in (1, -1)
        and fake(node).dtype == fake(node.args[0]).dtype
    )


def _quotient(values: fx.Node) -> fx.Node | None:
    """values / sum of values, if nothing else is made of them."""
    sums = [user for user in values.users if is_call(user, _aten.sum.dim_IntList) and user.args[1:] in (([-1], True), ([1], True))]
    quotients = [user for user in values.users if is_call(user, _aten.div.Tensor) and user.args[0] is values and user.args[1] in sums]
    if len(values.users) == 2 and len(sums) == len(quotients) == 1 and is_tensor(quotients[0]):
        return quotients[0]
    return None
