"""Halves of a value along its last dim, however they were cut."""

import operator
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import fake
from flexspec.passes.match import is_call

_aten = torch.ops.aten
_CUTS = (_aten.chunk.default, _aten.split.Tensor, _aten.split_with_sizes.default)


def whole_of_halves(first: Any, second: Any) -> fx.Node | None:
    """What `first` and `second` are the first and the second half of, along the last dim; None if they are not."""
    if is_call(first, operator.getitem) and is_call(second, operator.getitem):
        cut = first.args[0]
        if second.args[0] is not cut or (first.args[1], second.args[1]) != (0, 1) or not any(is_call(cut, one) for one in _CUTS):
            return None
        whole, size, dim = (*cut.args, 0)[:3]
        width = int(fake(whole).shape[-1])
        sizes = [2 * size] if cut.target == _aten.split.Tensor else [width] if size in (2, [width // 2] * 2) else []
        return whole if sizes == [width] and width % 2 == 0 and dim in (-1, fake(whole).dim() - 1) else None
    if is_call(first, _aten.slice.Tensor) and is_call(second, _aten.slice.Tensor) and first.args[0] is second.args[0]:
        whole = first.args[0]
        half = int(fake(whole).shape[-1]) // 2
        return whole if is_slice(first, whole, 0, half) and is_slice(second, whole, half, None) else None
    return None


def is_slice(node: Any, x: fx.Node, start: int, end: int | None, *, step: int = 1) -> bool:
    """Whether a value is `x[..., start:end:step]`."""
    if not is_call(node, _aten.slice.Tensor) or node.args[0] is not x:
        return False
    last = fake(x).dim() - 1
    _, at, begin, stop, stride = (*node.args, *(None, None, 1)[len(node.args) - 2 :])[:5]
    reaches_end = stop is None or stop >= int(fake(x).shape[-1])
    return at in (last, -1) and (begin or 0) == start and stride == step and (reaches_end if end is None else stop == end)
