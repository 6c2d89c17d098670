"""Reductions of tensors too large to hold: along one dim exactly, to one number from a sample."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flexspec.ir.onnx.lazy import ANSWERS, RULES, Elements, Memo, TooLargeError, elements_at, elements_of, ravelled, sample_of, unravelled
from flexspec.ir.onnx.values import broadcast

_aten = torch.ops.aten


def _reduction(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    """Along one dim in which the elements are runs of equal ones, whose ends are found by halving."""
    source: Tensor = args[0]
    dims = [args[1]] if isinstance(args[1], int) else list(args[1] or range(source.dim()))
    if len(dims) != 1:
        raise TooLargeError(f"it reduces {len(dims)} dims of {list(source.shape)}, which are too large")
    dim = dims[0] % source.dim()
    size, kept = source.shape[dim], len(args) > 2 and bool(args[2])
    name = func._schema.name.split("::")[-1]

    def elements(places: Tensor, memo: Memo) -> Tensor:
        index = list(unravelled(places, made.shape))
        if kept:
            del index[dim]
        where, values = _runs(source, index, dim)
        lengths = torch.diff(where, append=torch.full_like(where[:, :1], size), dim=1)
        if name in ("sum", "mean"):
            total = (values.double() * lengths).sum(1)
            return (total / size if name == "mean" else total).to(made.dtype)
        shown = values[:, :1].where(lengths == 0, values)  # runs of no length count for nothing
        reduced: Tensor = getattr(shown, name)(dim=1)
        return reduced

    return elements


def _runs(source: Tensor, index: Sequence[Tensor], dim: int) -> tuple[Tensor, Tensor]:
    """Where runs of equal elements along `dim` begin, [n, runs], and those elements, for an index [n] of each other dim.

    A run that is shorter than the distances at which it is looked for is found near the corners and near the other indices.
    """
    size, rows = source.shape[dim], len(index[0]) if index else 1

    def at(places: Tensor) -> Tensor:
        others = [one[:, None].expand_as(places).reshape(-1) for one in index]
        return elements_of(source, ravelled([*others[:dim], places.reshape(-1), *others[dim:]], source.shape), {}).reshape(places.shape)

    fixed = torch.cat([torch.arange(3), 2 ** torch.arange(size.bit_length()), size - 1 - torch.arange(3)])
    near = [one[:, None] + torch.arange(-1, 2) for one in index if bool((one > 0).any())]
    starts = torch.cat([fixed.expand(rows, -1), *near], dim=1).clamp(0, size - 1).sort(dim=1).values
    values = at(starts)
    low, high = starts[:, :-1].clone(), starts[:, 1:].clone()
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        same = at(middle) == values[:, :-1]
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    changes = values[:, 1:] != values[:, :-1]
    if bool((changes & (at(high) != values[:, 1:])).any()):
        raise TooLargeError(f"a dim of {size} elements that are no runs of equal ones is too large to reduce")
    begins = torch.where(changes, high, starts[:, 1:])
    return torch.cat([torch.zeros_like(begins[:, :1]), begins], dim=1), values


def _sampled(tensor: Tensor) -> Tensor:
    return elements_at(tensor, *sample_of(tensor.shape))


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    index = sample_of(a.shape)
    return torch.equal(elements_at(a, *index), elements_at(b, *index))


def _close(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    shape = broadcast(a.shape, b.shape)
    index = sample_of(shape)
    one, other = (elements_at(tensor.expand(shape), *index) for tensor in (a, b))
    return torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


ANSWERS |= {
    _aten.all.default: lambda x: _sampled(x).all(),
    _aten.any.default: lambda x: _sampled(x).any(),
    _aten.equal.default: _equal,
    _aten.allclose.default: _close,
}
RULES |= dict.fromkeys(
    (_aten.sum.dim_IntList, _aten.mean.dim, _aten.any.dim, _aten.all.dim, _aten.amax.default, _aten.amin.default), _reduction
)
