"""Recognition of the rotary embedding: of the two halves of a head or of adjacent dims, of all dims or of the first ones."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, depends_on, fake, is_tensor
from flexspec.ir.ops import ATTENTION, ROPE
from flexspec.passes.halves import is_slice, whole_of_halves
from flexspec.passes.manager import Recognised
from flexspec.passes.match import either_order, is_call

_aten = torch.ops.aten
_KEEP_COLUMNS = {_aten.unsqueeze.default, _aten.to.dtype, _aten._to_copy.default}


def recognise_rope(model: ModelGraph) -> Recognised:
    """x * cos + turned(x) * sin, of whole heads or of their first dims → `flexspec::rope`.

    Returns:
        Matches, and how many there should be: both the queries and the keys of every attention that reads a cosine.
    """
    rotary = depends_on(model.graph, model.nodes(_aten.cos.default))
    expected = sum(node.args[k] in rotary and _is_rotated(node.args[k]) for node in model.nodes(ATTENTION) for k in (0, 1))
    matches = 0
    for node in model.nodes(_aten.add.Tensor):
        found = _match(node)
        if found is None:
            continue
        x, cos, sin, interleaved = found
        whole, last = _with_the_rest(node, x)
        tables = [_table(model, value, interleaved, node) for value in (cos, sin)]
        rope = model.emit(ROPE, (whole, *tables, interleaved), before=last)
        last.replace_all_uses_with(rope)
        matches += 1
    model.finish()
    return Recognised(matches, expected)


def _is_rotated(node: Any) -> bool:
    return is_call(node, _aten.add.Tensor) or (is_call(node, _aten.cat.default) and any(is_call(p, _aten.add.Tensor) for p in node.args[0]))


def _match(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, bool] | None:
    """The value that is rotated, its cosines and sines, and whether pairs are adjacent dims."""
    for straight, turned in either_order(node, _aten.add.Tensor):
        for x, cos in either_order(straight, _aten.mul.Tensor):
            for half, sin in either_order(turned, _aten.mul.Tensor):
                if not (_is_table(cos, x) and _is_table(sin, x)):
                    continue
                if _is_half_rotation(half, x):
                    return x, cos, sin, False
                if _is_pair_rotation(half, x) and _comes_in_pairs(cos) and _comes_in_pairs(sin):
                    return x, cos, sin, True
    return None


def _is_table(node: Any, x: Any) -> bool:
    """[tokens, 1, rotary_dim], for x [tokens, heads, rotary_dim]."""
    return is_tensor(node) and is_tensor(x) and fake(x).dim() == 3 and list(fake(node).shape[1:]) == [1, fake(x).shape[-1]]


def _table(model: ModelGraph, node: fx.Node, interleaved: bool, before: fx.Node) -> fx.Node:
    """[tokens, rotary_dim], the columns of pairs and then the same again, of [tokens, 1, rotary_dim]."""
    if is_call(node, _aten.unsqueeze.default) and node.args[1] == 1:
        flat: Any = node.args[0]
    else:
        flat = model.emit(_aten.reshape.default, (node, [-1, int(fake(node).shape[-1])]), before=before)
    assert isinstance(flat, fx.Node)
    if not interleaved:
        return flat
    pairs = model.emit(_aten.slice.Tensor, (flat, 1, 0, int(fake(flat).shape[1]), 2), before=before)
    return model.emit(_aten.cat.default, ([pairs, pairs], 1), before=before)


def _comes_in_pairs(node: Any) -> bool:
    """Whether adjacent columns are equal, two by two, because they were repeated so."""
    if is_call(node, _aten.repeat_interleave.self_int):
        return node.args[1] == 2 and node.args[2:] in ((-1,), (fake(node).dim() - 1,))
    if not is_tensor(node) or node.op != "call_function" or not (torch.Tag.pointwise in node.target.tags or node.target in _KEEP_COLUMNS):
        return False
    width = fake(node).shape[-1]
    operands = [arg for arg in node.all_input_nodes if is_tensor(arg) and fake(arg).shape[-1:] == (width,)]
    return bool(operands) and all(map(_comes_in_pairs, operands))


def _with_the_rest(node: fx.Node, x: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Heads with the dims that pass through, and the concatenation of both; `x` and `node` themselves without one."""
    width = int(fake(x).shape[-1])
    for last in node.users:
        parts: Any = last.args[0]
        if not is_call(last, _aten.cat.default) or len(parts) != 2 or last.args[1:] not in ((-1,), (2,)):
            continue
        first, rest = parts
        if first is not node or not is_call(rest, _aten.slice.Tensor):
            continue
        whole: Any = rest.args[0]
        if is_slice(rest, whole, width, None) and (x is whole or is_slice(x, whole, 0, width)):
            return whole, last
    return x, node


def _is_half_rotation(node: Any, x: Any) -> bool:
    """cat(-x[second half], x[first half]) over the last dim."""
    if not is_call(node, _aten.cat.default) or len(node.args[0]) != 2 or node.args[1:] not in ((-1,), (fake(node).dim() - 1,)):
        return False
    negated, first = node.args[0]
    return is_call(negated, _aten.neg.default) and whole_of_halves(first, negated.args[0]) is x


def _is_pair_rotation(node: Any, x: fx.Node) -> bool:
    """stack(-x[odd dims], x[even dims]) behind the last dim, which both then make up."""
    if not is_call(node, _aten.reshape.default) or fake(node).shape[1:] != fake(x).shape[1:]:
        return False
    pairs = node.args[0]
    if not is_call(pairs, _aten.stack.default) or len(pairs.args[0]) != 2 or pairs.args[1:] not in ((-1,), (fake(x).dim(),)):
        return False
    negated, first = pairs.args[0]
    if not is_call(negated, _aten.neg.default):
        return False
    return is_slice(negated.args[0], x, 1, None, step=2) and is_slice(first, x, 0, None, step=2)
