"""Indexing of tensors too large to hold, and by such tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flexspec.ir.onnx.lazy import RULES, Elements, Memo, TooLargeError, elements_at, elements_of, ravelled, sample_of, unravelled
from flexspec.ir.onnx.lazy_operators import broadcast_places
from flexspec.ir.onnx.values import broadcast

_aten = torch.ops.aten


def _common_shape(tensors: Sequence[Tensor]) -> torch.Size:
    return broadcast(*(one.shape for one in tensors))


def _index_select(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    source, dim, chosen = args
    dim %= source.dim()

    def elements(places: Tensor, memo: Memo) -> Tensor:
        index = list(unravelled(places, made.shape))
        index[dim] = _checked(elements_of(chosen, index[dim], memo), source.shape[dim])
        return elements_of(source, ravelled(index, source.shape), memo)

    return elements


def _embedding(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    table, chosen = args[:2]

    def elements(places: Tensor, memo: Memo) -> Tensor:
        rows = _checked(elements_of(chosen, places // table.shape[1], memo), table.shape[0])
        return elements_of(table, rows * table.shape[1] + places % table.shape[1], memo)

    _checked(elements_at(chosen, *sample_of(chosen.shape)), table.shape[0])
    return elements


def _checked(index: Tensor, size: int) -> Tensor:
    index = torch.where(index < 0, index + size, index)
    if bool(((index < 0) | (index >= size)).any()):
        raise IndexError(f"an index lies outside of {size}")
    return index


def _gather(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    source, dim, chosen = args[:3]
    dim %= source.dim()

    def elements(places: Tensor, memo: Memo) -> Tensor:
        index = list(unravelled(places, made.shape))
        index[dim] = _checked(elements_of(chosen, places, memo), source.shape[dim])
        return elements_of(source, ravelled(index, source.shape), memo)

    return elements


def _index(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    """x[i, j, ...] of index tensors for the first dims."""
    source, chosen = args[0], list(args[1])
    if any(one is None or one.dtype == torch.bool for one in chosen):
        raise TooLargeError("an index of this form is not supported in large tensors")
    common = _common_shape(chosen)
    rest = source.shape[len(chosen) :]

    def elements(places: Tensor, memo: Memo) -> Tensor:
        front, back = (places // rest.numel(), places % rest.numel()) if rest else (places, None)
        index = [
            _checked(elements_of(one, broadcast_places(front, one.shape, common, memo), memo).long(), size)
            for one, size in zip(chosen, source.shape, strict=False)
        ]
        found = ravelled(index, source.shape[: len(chosen)])
        return elements_of(source, found if back is None else found * rest.numel() + back, memo)

    return elements


def _index_put(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    """x with updates written at an index that counts along each of the first dims: a block of x."""
    source, chosen, updates = args[0], list(args[1]), args[2]
    if (len(args) > 3 and args[3]) or any(one is None or one.dtype == torch.bool for one in chosen):
        raise TooLargeError("an index of this form is not supported in large tensors")
    block = _common_shape(chosen)
    if len(block) != len(chosen):
        raise TooLargeError("an index of this form is not supported in large tensors")
    updates = updates.expand(*block, *source.shape[len(chosen) :])

    def written(index: Sequence[Tensor]) -> list[Tensor]:
        places = ravelled(index, block)
        return [elements_of(one, broadcast_places(places, one.shape, block, {}), {}) for one in chosen]

    origin = [int(one) for one in written([torch.zeros(1, dtype=torch.int64) for _ in block])]
    for tried in (sample_of(block), [torch.tensor([size - 1]) for size in block]):
        if any(not torch.equal(one, at + begin) for one, at, begin in zip(written(tried), tried, origin, strict=True)):
            raise TooLargeError("an index that is no block is not supported in large tensors")

    def elements(places: Tensor, memo: Memo) -> Tensor:
        index = list(unravelled(places, source.shape))
        own = [one - begin for one, begin in zip(index, origin, strict=False)]
        inside = torch.stack([(one >= 0) & (one < size) for one, size in zip(own, block, strict=True)]).all(0)
        own = [one.clamp(0, size - 1) for one, size in zip(own, block, strict=True)]
        new = elements_of(updates, ravelled([*own, *index[len(own) :]], updates.shape), memo)
        return torch.where(inside, new, elements_of(source, places, memo))

    return elements


RULES |= {
    _aten.index_select.default: _index_select,
    _aten.embedding.default: _embedding,
    _aten.gather.default: _gather,
    _aten.index.Tensor: _index,
    _aten.index_put.default: _index_put,
}
