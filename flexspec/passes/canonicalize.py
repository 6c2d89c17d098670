"""Canonicalisation: what tracing leaves behind and no one needs."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, expression, fake, is_tensor
from flexspec.passes.match import is_call, is_parameter

_aten = torch.ops.aten
_ASSERTS = {_aten._assert_tensor_metadata.default, _aten._assert_scalar.default, _aten.sym_constrain_range_for_size.default}
_CASTS = {_aten.to.dtype, _aten.to.device, _aten.to.dtype_layout, _aten._to_copy.default, _aten.type_as.default}
_COPIES = {_aten.clone.default, _aten.contiguous.default, _aten.detach.default, _aten.alias.default, _aten.lift_fresh_copy.default}
_REPEATS = (_aten.repeat.default, _aten.expand.default)
_NAMES: dict[Any, Any] = {_aten.concat.default: _aten.cat.default, _aten.concatenate.default: _aten.cat.default}
_END = 2**63 - 1


def canonicalize(model: ModelGraph) -> int:
    """Remove asserts, casts to the same dtype, inference dropout, multiplications by 1, additions of 0 and whole slices.

    Rows that an index picks or gathers from a table become an embedding.

    Returns:
        How many nodes went.
    """
    removed = 0
    for node in list(model.graph.nodes):
        if node.op != "call_function":
            continue
        node.target = _NAMES.get(node.target, node.target)
        if node.target in _ASSERTS:
            model.graph.erase_node(node)
            removed += 1
        elif _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
            removed += 1
        elif (found := _picked_rows(node) or _gathered_rows(node)) is not None:
            node.replace_all_uses_with(model.emit(_aten.embedding.default, found, before=node))
            model.graph.erase_node(node)
    model.finish()
    return removed


def _picked_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Table and index of table[index] or table.index_select(0, index), of a table of two dims."""
    table: Any = node.args[0] if node.args else None
    if node.target == _aten.index.Tensor:
        indices = node.args[1]
        given = indices if isinstance(indices, list | tuple) else ()
    elif node.target == _aten.index_select.default and node.args[1] in (0, -2):
        given = node.args[2:]
    else:
        return None
    if not is_parameter(table) or fake(table).dim() != 2 or len(given) != 1:
        return None
    index: Any = given[0]
    return (table, index) if is_tensor(index) and fake(index).dtype == torch.int64 else None


def _gathered_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Table and index of a table of two dims, repeated over the batch, that is gathered by an index repeated over the columns."""
    args: tuple[Any, ...] = node.args
    if node.target != _aten.gather.default or args[1] not in (1, -2) or args[0].target not in _REPEATS or args[2].target not in _REPEATS:
        return None
    table, column = args[0].args[0], args[2].args[0]
    if is_call(table, _aten.unsqueeze.default) and table.args[1] == 0:
        table = table.args[0]
    if not is_parameter(table) or not is_call(column, _aten.unsqueeze.default) or column.args[1] not in (-1, 2):
        return None
    index, spread = column.args[0], fake(args[2]).shape
    same_rows = [expression(dim) for dim in fake(args[0]).shape[1:]] == list(fake(table).shape)
    same_index = [expression(dim) for dim in spread[:-1]] == [expression(dim) for dim in fake(index).shape]
    return (table, index) if same_rows and same_index and expression(spread[-1]) == fake(table).shape[-1] else None


def _is_identity(node: fx.Node) -> bool:
    args: tuple[Any, ...] = node.args
    if node.target in _CASTS or node.target in _COPIES:
        return fake(node).dtype == fake(args[0]).dtype and fake(node).device == fake(args[0]).device
    if node.target == _aten.dropout.default:
        return not args[2]
    if node.target == _aten.slice.Tensor:
        defaults: tuple[Any, ...] = (0, None, None, 1)
        dim, start, end, step = (*args[1:], *defaults[len(args) - 1 :])
        size = fake(args[0]).shape[dim]
        is_whole = end is None or end == _END or (isinstance(size, int) and isinstance(end, int) and end >= size)
        return start in (0, None) and is_whole and step == 1
    if node.target in (_aten.mul.Tensor, _aten.add.Tensor) and not node.kwargs:
        neutral = 1 if node.target == _aten.mul.Tensor else 0
        scalar = args[1]
        return is_tensor(args[0]) and isinstance(scalar, int | float) and scalar == neutral and fake(node).dtype == fake(args[0]).dtype
    return False
