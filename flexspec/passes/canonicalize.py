"""Canonicalisation: what tracing leaves behind and no one needs."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_ASSERTS = {_aten._assert_tensor_metadata.default, _aten._assert_scalar.default, _aten.sym_constrain_range_for_size.default}
_CASTS = {_aten.to.dtype, _aten.to.device, _aten.to.dtype_layout, _aten._to_copy.default, _aten.type_as.default}
_COPIES = {_aten.clone.default, _aten.contiguous.default, _aten.detach.default, _aten.alias.default, _aten.lift_fresh_copy.default}
_NAMES: dict[Any, Any] = {_aten.concat.default: _aten.cat.default, _aten.concatenate.default: _aten.cat.default}
_END = 2**63 - 1


def canonicalize(model: ModelGraph) -> int:
    """Remove asserts, casts to the same dtype, inference dropout, multiplications by 1, additions of 0 and whole slices.

    Rows that an index picks from a table become an embedding.

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
        elif _picks_rows(node):
            args: tuple[Any, ...] = node.args
            index = args[1][0] if node.target == _aten.index.Tensor else args[2]
            node.replace_all_uses_with(model.emit(_aten.embedding.default, (args[0], index), before=node))
            model.graph.erase_node(node)
    model.finish()
    return removed


def _picks_rows(node: fx.Node) -> bool:
    """table[index] or table.index_select(0, index), of a table of two dims."""
    if node.target == _aten.index.Tensor:
        table, indices = node.args[:2]
        given = indices if isinstance(indices, list | tuple) else ()
    elif node.target == _aten.index_select.default and node.args[1] in (0, -2):
        table, given = node.args[0], node.args[2:]
    else:
        return False
    if not is_parameter(table) or fake(table).dim() != 2 or len(given) != 1:
        return False
    return is_tensor(given[0]) and fake(given[0]).dtype == torch.int64


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
