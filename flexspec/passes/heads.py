"""Queries, keys and values of an attention found in a graph, as [batch, tokens, heads, head_dim], whatever moved them where they are.

Data movement (views, transposes, repeated KV heads) is followed backwards and told apart by running it on numbered elements.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from flexspec.ir.evaluate import Evaluation
from flexspec.ir.graph import ModelGraph, depends_on, expression, fake, is_tensor, needed_for

_aten = torch.ops.aten
_MOVES = {
    _aten.view.default,
    _aten.reshape.default,
    _aten._unsafe_view.default,
    _aten.flatten.using_ints,
    _aten.unflatten.int,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.expand.default,
    _aten.broadcast_to.default,
    _aten.repeat.default,
    _aten.repeat_interleave.self_int,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.index.Tensor,
    _aten.contiguous.default,
    _aten.clone.default,
}


def is_move(node: Any) -> bool:
    """Whether a call only moves or repeats elements of its first operand."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in _MOVES


def with_heads(model: ModelGraph, evaluation: Evaluation, operand: fx.Node, moved: Tensor, top: fx.Node, before: fx.Node) -> fx.Node | None:
    """The value that `operand` was made of by moves, with the fewest heads, emitted as [batch, tokens, heads, head_dim].

    Args:
        model: the graph.
        evaluation: at the size of `moved`.
        operand: of a product.
        moved: elements of `operand` as [batch, tokens, heads, head_dim], repeated to the query's heads, by `numbered` of `top`.
        top: where the moves begin.
        before: where to insert.
    """
    found: tuple[fx.Node, Tensor] | None = None
    given = {top: numbered(evaluation, top)}
    for node in sources(operand):
        if not _has_tokens(model, node):  # what was moved out of it can't be laid out token by token
            found = None
            continue
        value = evaluation.value(node, given)
        laid_out = _laid_out(model, node, value, moved.shape[-1])
        if laid_out is None or moved.shape[2] % laid_out.shape[2] or (found is not None and laid_out.shape[2] >= found[1].shape[2]):
            continue
        if torch.equal(laid_out.repeat_interleave(moved.shape[2] // laid_out.shape[2], dim=2), moved):
            found = node, laid_out
    if found is None:
        return None
    node, laid_out = found
    if _leads(model, node, (1, 0)):
        node = model.emit(_aten.transpose.int, (node, 0, 1), before=before)
    if fake(node).dim() == 3:
        return model.emit(_aten.unflatten.int, (node, 2, list(laid_out.shape[2:])), before=before)
    if _leads(model, node, (0, 1)):
        return node if fake(node).dim() == 4 else model.emit(_aten.flatten.using_ints, (node, 2, 3), before=before)
    return model.emit(_aten.transpose.int, (node, 1, 2), before=before)


def scaled_before_moves(model: ModelGraph, operand: fx.Node) -> fx.Node:
    """move(x) * number, where heads are part of the batch, → move(x * number), with x where batch and tokens are dims of their own."""
    *moves, factor = sources(operand)
    if (
        factor.target not in (_aten.mul.Tensor, _aten.div.Tensor)
        or not isinstance(factor.args[1], int | float)
        or not is_move(factor.args[0])
    ):
        return operand
    path = list(sources(factor.args[0]))  # type: ignore[arg-type]
    place = next((i for i, one in enumerate(path) if any(_leads(model, one, dims) for dims in ((0, 1), (1, 0), (0, 2)))), 0)
    if place == 0 or any(len(one.users) > 1 for one in (factor, *path[:place])):
        return operand
    scaled = model.emit(factor.target, (path[place], factor.args[1]), before=path[place - 1])
    path[place - 1].replace_input_with(path[place], scaled)
    factor.replace_all_uses_with(path[0])
    model.graph.erase_node(factor)
    return moves[0] if moves else path[0]


def numbered(evaluation: Evaluation, node: fx.Node) -> Tensor:
    """A value of the node's shape, each element another number."""
    shape = evaluation.shape(node)
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def sources(node: fx.Node) -> Iterator[fx.Node]:
    """A node, and what it was made of by moves, up to where they begin."""
    yield node
    while is_move(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
        yield node


def replace_result(model: ModelGraph, evaluation: Evaluation, out: fx.Node, attention: fx.Node) -> bool:
    """Let what was moved out of the old result `out`, [batch, heads, tokens, head_dim], be read from `attention`; whether all was."""
    numbers = numbered(evaluation, attention)
    given = {out: numbers.transpose(1, 2).reshape(evaluation.shape(out))}
    waiting = [out]
    while waiting:
        node = waiting.pop()
        value = evaluation.value(node, given)
        if _leads(model, node, (0, 1)) and torch.equal(value, numbers.reshape(value.shape)):
            node.replace_all_uses_with(_reshaped(model, attention, list(value.shape[2:]), before=node))
        elif _leads(model, node, (1, 0)) and torch.equal(value, numbers.transpose(0, 1).reshape(value.shape)):
            rest = _reshaped(model, attention, list(value.shape[2:]), before=node)
            node.replace_all_uses_with(model.emit(_aten.transpose.int, (rest, 0, 1), before=node))
        elif (order := _order_of_rows(model, node, value, numbers)) is not None:
            rows = _reshaped(model, attention, list(value.shape[1:]), before=node)
            rows = rows if order == (0, 1) else model.emit(_aten.transpose.int, (rows, 0, 1), before=node)
            node.replace_all_uses_with(model.emit(_aten.flatten.using_ints, (rows, 0, 1), before=node))
        else:
            waiting += [user for user in node.users if is_move(user)]
    left = [user for user in out.users if _is_read(user)]
    if left and fake(out).dim() == 4:
        out.replace_all_uses_with(model.emit(_aten.transpose.int, (attention, 1, 2), before=out))
        left = []
    if not left:
        _erase(model, out)
    return not left


def _erase(model: ModelGraph, out: fx.Node) -> None:
    """Erase what was only there for `out`; dead code elimination keeps what might draw random numbers, as dropout might."""
    made_for = needed_for([out]) | depends_on(model.graph, [out])
    for node in reversed(list(model.graph.nodes)):
        if node in made_for and node.op == "call_function" and not node.users:
            model.graph.erase_node(node)


def _is_read(node: fx.Node) -> bool:
    return node.op == "output" or any(_is_read(user) for user in node.users)


def _reshaped(model: ModelGraph, attention: fx.Node, rest: Sequence[int], before: fx.Node) -> fx.Node:
    if list(fake(attention).shape[2:]) == list(rest):
        return attention
    flat = model.emit(_aten.flatten.using_ints, (attention, 2, 3), before=before)
    return flat if len(rest) == 1 else model.emit(_aten.unflatten.int, (flat, 2, list(rest)), before=before)


def _laid_out(model: ModelGraph, node: fx.Node, value: Tensor, head_dim: int) -> Tensor | None:
    """A value as [batch, tokens, heads, head_dim], if its shape allows that."""
    if not is_tensor(node) or fake(node).dim() not in (3, 4, 5) or any(isinstance(dim, torch.SymInt) for dim in fake(node).shape[3:]):
        return None
    if _leads(model, node, (1, 0)):
        value = value.transpose(0, 1)
        if value.dim() > 3:
            return value.flatten(2, -2) if value.shape[-1] == head_dim else None
        return value.reshape(*value.shape[:2], -1, head_dim) if value.shape[2] % head_dim == 0 else None
    if fake(node).dim() == 3:
        fits = _leads(model, node, (0, 1)) and value.shape[2] % head_dim == 0
        return value.view(*value.shape[:2], -1, head_dim) if fits else None
    if value.shape[-1] != head_dim:
        return None
    if _leads(model, node, (0, 1)):
        return value.flatten(2, -2)
    if value.dim() == 5:
        return None
    return value.transpose(1, 2) if _leads(model, node, (0, 2)) else None


def _has_tokens(model: ModelGraph, node: fx.Node) -> bool:
    """Whether batch and tokens are dims of a value's own, which no others are folded into."""
    dims = [expression(dim) for dim in fake(node).shape]
    batch, tokens = (expression(dim) for dim in fake(model.placeholder("token_ids")).shape)
    return dims.count(batch) == dims.count(tokens) == 1 or dims[:1] == [batch * tokens]


def _order_of_rows(model: ModelGraph, node: fx.Node, value: Tensor, numbers: Tensor) -> tuple[int, int] | None:
    """Whether a value is [batch * tokens, …] of `numbers` [batch, tokens, …], (0, 1), or [tokens * batch, …], (1, 0)."""
    batch, tokens = (expression(dim) for dim in fake(model.placeholder("token_ids")).shape)
    dims = [expression(dim) for dim in fake(node).shape]
    if dims[0] != batch * tokens or not all(isinstance(dim, int) for dim in dims[1:]):
        return None
    orders = [(0, 1), (1, 0)]
    return next((order for order in orders if torch.equal(value, numbers.permute(*order, 2, 3).reshape(value.shape))), None)


def _leads(model: ModelGraph, node: fx.Node, places: tuple[int, int]) -> bool:
    """Whether batch and tokens are the dims at `places`, and no other dim depends on them."""
    shape = list(fake(node).shape)
    if len(shape) <= max(places):
        return False
    tokens = [expression(dim) for dim in fake(model.placeholder("token_ids")).shape]
    rest = [dim for place, dim in enumerate(shape) if place not in places]
    return [expression(shape[place]) for place in places] == tokens and all(isinstance(dim, int) for dim in rest)
