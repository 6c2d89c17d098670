"""Keys that a model repeats for every query head before it turns them: turned first instead, so that the cache holds each once."""

from collections.abc import Callable

import torch
from torch import fx

from flexspec.ir.evaluate import Evaluation
from flexspec.ir.graph import ModelGraph, fake
from flexspec.passes.heads import is_move, numbered

_aten = torch.ops.aten


def without_repeats(
    model: ModelGraph, evaluation: Evaluation, node: fx.Node, reduced: Callable[[fx.Node], fx.Node | None], before: fx.Node
) -> fx.Node | None:
    """`node`, [batch, heads, tokens, head_dim], computed from each KV head once; None if it is not computed so that this can be done.

    Args:
        model: the graph.
        evaluation: at any size.
        node: what point-wise operators compute of one value with repeated heads, and of others that have one head.
        reduced: from a value with repeated heads to the same as [batch, tokens, fewest heads, head_dim].
        before: where to insert.
    """
    cone = _cone(node)
    leaves = {arg for one in cone for arg in one.all_input_nodes if arg not in cone and _has_heads(arg, node)}
    if len(leaves) != 1:
        return None
    (leaf,) = leaves
    once = reduced(leaf)
    heads = int(fake(node).shape[1])
    if once is None or int(fake(once).shape[2]) == heads:
        return None
    values = {leaf: model.emit(_aten.transpose.int, (once, 1, 2), before=before)}
    for one in model.graph.nodes:
        if one in cone and one not in values:
            args, kwargs = fx.node.map_arg((one.args, one.kwargs), lambda arg: values.get(arg, arg))
            assert callable(one.target)
            values[one] = model.emit(one.target, args, before=before, kwargs=dict(kwargs))
    small = numbered(evaluation, values[leaf]).float().sin()
    groups = heads // small.shape[1]
    whole = evaluation.value(node, {leaf: small.repeat_interleave(groups, dim=1)})
    same = torch.equal(whole, evaluation.value(values[node], {values[leaf]: small}).repeat_interleave(groups, dim=1))
    return values[node] if same else None


def _cone(node: fx.Node) -> set[fx.Node]:
    """What computes `node` from values moved into [batch, heads, …]: point-wise operators, and parts of heads cut out and joined."""
    cone: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one in cone or one.op != "call_function" or not _has_heads(one, node) or not _is_inside(one):
            continue
        cone.add(one)
        waiting += one.all_input_nodes
    return cone


def _is_inside(node: fx.Node) -> bool:
    if node.target in (_aten.cat.default, _aten.slice.Tensor):
        return True
    return not is_move(node) and torch.Tag.pointwise in getattr(node.target, "tags", ())


def _has_heads(node: fx.Node, like: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.shape[:3] == fake(like).shape[:3]
