"""Canonicalisation: what tracing leaves behind and no one needs."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor

_aten = torch.ops.aten
_ASSERTS = {_aten._assert_tensor_metadata.default, _aten._assert_scalar.default, _aten.sym_constrain_range_for_size.default}
_CASTS = {_aten.to.dtype, _aten.to.device, _aten.to.dtype_layout, _aten._to_copy.default, _aten.type_as.default}
_COPIES = {_aten.clone.default, _aten.contiguous.default, _aten.detach.default, _aten.alias.default, _aten.lift_fresh_copy.default}
_END = 2**63 - 1


def canonicalize(model: ModelGraph) -> int:
    """Remove asserts, casts to the same dtype, inference dropout, multiplications by 1, additions of 0 and whole slices.

    Returns:
        How many nodes went.
    """
    removed = 0
    for node in list(model.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _ASSERTS:
            model.graph.erase_node(node)
            removed += 1
        elif _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
            removed += 1
    model.finish()
    return removed


def _is_identity(node: fx.Node) -> bool:
    args: tuple[Any, ...] = node.args
    if node.target in _CASTS or node.target in _COPIES:
        return fake(node).dtype == fake(args[0]).dtype and fake(node).device == fake(args[0]).device
    if node.target == _aten.dropout.default:
        return not args[2]
    if node.target == _aten.slice.Tensor:
        start, end = (args[2] if len(args) > 2 else 0), (args[3] if len(args) > 3 else _END)
        step = args[4] if len(args) > 4 else 1
        return start in (0, None) and (end is None or end == _END) and step == 1
    if node.target in (_aten.mul.Tensor, _aten.add.Tensor) and not node.kwargs:
        neutral = 1 if node.target == _aten.mul.Tensor else 0
        scalar = args[1]
        return is_tensor(args[0]) and isinstance(scalar, int | float) and scalar == neutral and fake(node).dtype == fake(args[0]).dtype
    return False
