"""The elements of the results of operators on tensors too large to hold, in terms of the elements of what they take."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from flexspec.ir.onnx.lazy import (
    RULES,
    Elements,
    Memo,
    Rule,
    TooLargeError,
    elements_of,
    held,
    ravelled,
    unravelled,
)

_aten = torch.ops.aten
_FEW = 64


def _pointwise(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    shape = made.shape
    named = {name: one for name, one in kwargs.items() if name not in ("device", "pin_memory", "layout", "memory_format", "non_blocking")}

    def elements(places: Tensor, memo: Memo) -> Tensor:
        def own(tensor: Tensor) -> Tensor:
            return elements_of(tensor, broadcast_places(places, tensor.shape, shape, memo), memo) if tensor.dim() else held(tensor)

        result: Tensor = func(*tree_map_only(Tensor, own, args), **tree_map_only(Tensor, own, named))
        return result.expand(len(places))

    return elements


def broadcast_places(places: Tensor, source: Sequence[int], shape: Sequence[int], memo: Memo) -> Tensor:
    """Where the elements at places of `shape` are in a tensor that is broadcast to it."""
    if tuple(source) == tuple(shape):
        return places
    key = (id(places), (tuple(source), tuple(shape)))
    if key not in memo:
        index = unravelled(places, shape)[len(shape) - len(source) :]
        kept = [torch.zeros_like(one) if size == 1 else one for one, size in zip(index, source, strict=True)]
        memo[key] = (places, ravelled(kept, source) if kept else torch.zeros_like(places))
    return memo[key][1]


def _same_places(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    return lambda places, memo: elements_of(args[0], places, memo)


def _expand(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    return lambda places, memo: elements_of(args[0], broadcast_places(places, args[0].shape, made.shape, memo), memo)


def _moved(shape: Sequence[int], source: Tensor, move: Callable[[list[Tensor]], Sequence[Tensor]]) -> Elements:
    """Elements of `source`, at the index that `move` makes of the result's."""
    return lambda places, memo: elements_of(source, ravelled(move(list(unravelled(places, shape))), source.shape), memo)


def _permute(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    source: Tensor = args[0]
    order = list(range(source.dim()))
    if func == _aten.permute.default:
        order = [dim % source.dim() for dim in args[1]]
    else:
        first, second = (args[1] % source.dim(), args[2] % source.dim()) if func == _aten.transpose.int else (0, 1)
        order[first], order[second] = order[second], order[first]
    return _moved(made.shape, source, lambda index: [index[order.index(dim)] for dim in range(source.dim())])


def _slice(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    given: list[Any] = [*args, *(None, 0, None, None, 1)[len(args) :]]
    source, dim, start, _, step = given
    dim, start = (dim or 0) % source.dim(), start or 0
    size = source.shape[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    return _moved(made.shape, source, lambda index: [*index[:dim], start + step * index[dim], *index[dim + 1 :]])


def _select(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    source, dim, place = args
    return _selected(made.shape, source, dim % source.dim(), place % source.shape[dim])


def _selected(shape: Sequence[int], source: Tensor, dim: int, place: int) -> Elements:
    def move(index: list[Tensor], places: Tensor) -> list[Tensor]:
        return [*index[:dim], torch.full_like(places, place), *index[dim:]]

    return lambda places, memo: elements_of(source, ravelled(move(list(unravelled(places, shape)), places), source.shape), memo)


def _unbind(func: Any, args: Any, kwargs: Any, made: Sequence[Tensor]) -> list[Elements]:
    source, dim = args[0], (args[1] if len(args) > 1 else 0) % args[0].dim()
    return [_selected(one.shape, source, dim, place) for place, one in enumerate(made)]


def _joined(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    parts, dim = list(args[0]), (args[1] if len(args) > 1 else 0) % made.dim()
    if func == _aten.stack.default:
        parts = [one.unsqueeze(dim) for one in parts]
    parts = [one for one in parts if one.numel()]
    ends = torch.tensor([one.shape[dim] for one in parts]).cumsum(0)

    def elements(places: Tensor, memo: Memo) -> Tensor:
        index = unravelled(places, made.shape)
        which = torch.bucketize(index[dim], ends, right=True)
        result = torch.empty(len(places), dtype=made.dtype)
        for number, part in enumerate(parts):
            mine = which == number
            if not bool(mine.any()):
                continue
            own = [one[mine] for one in index]
            own[dim] = own[dim] - (int(ends[number]) - part.shape[dim])
            result[mine] = elements_of(part, ravelled(own, part.shape), {}).to(made.dtype)
        return result

    return elements


def _repeat(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    source = args[0]
    return _moved(
        made.shape, source, lambda index: [one % size for one, size in zip(index[made.dim() - source.dim() :], source.shape, strict=True)]
    )


def _flip(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    gone = {dim % made.dim() for dim in args[1]}
    return _moved(made.shape, args[0], lambda index: [made.shape[dim] - 1 - one if dim in gone else one for dim, one in enumerate(index)])


def _triangle(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    diagonal = args[1] if len(args) > 1 else 0
    upper = func == _aten.triu.default

    def elements(places: Tensor, memo: Memo) -> Tensor:
        *_, row, column = unravelled(places, made.shape)
        kept = column - row >= diagonal if upper else column - row <= diagonal
        found = elements_of(args[0], places, memo)
        return torch.where(kept, found, torch.zeros_like(found))

    return elements


def _pad(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    source, widths = args[0], list(args[1])
    value = args[2] if len(args) > 2 else 0
    begins = [widths[2 * (made.dim() - 1 - dim)] if 2 * (made.dim() - 1 - dim) < len(widths) else 0 for dim in range(made.dim())]

    def elements(places: Tensor, memo: Memo) -> Tensor:
        own = [one - begin for one, begin in zip(unravelled(places, made.shape), begins, strict=True)]
        inside = torch.stack([(one >= 0) & (one < size) for one, size in zip(own, source.shape, strict=True)]).all(0)
        kept = [one.clamp(0, size - 1) for one, size in zip(own, source.shape, strict=True)]
        found = elements_of(source, ravelled(kept, source.shape), memo)
        return torch.where(inside, found, torch.full_like(found, value))

    return elements


def _filled(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    name = func._schema.name.split("::")[-1]
    number = 0 if "zeros" in name or "empty" in name else 1 if "ones" in name else args[1]
    return lambda places, memo: torch.full((len(places),), number, dtype=made.dtype)


def _arange(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    start = 0 if func == _aten.arange.default else args[0]
    step = args[2] if len(args) > 2 else 1
    return lambda places, memo: (start + step * (places if made.dtype == torch.int64 else places.double())).to(made.dtype)


def _product(func: Any, args: Any, kwargs: Any, made: Tensor) -> Elements:
    """Of matrices, or batches of them."""
    a, b = args
    inner = a.shape[-1]
    if inner > _FEW:
        raise TooLargeError(f"a product of matrices with {inner} columns and {made.numel()} results is too large")

    def elements(places: Tensor, memo: Memo) -> Tensor:
        *batch, row, column = unravelled(places, made.shape)
        total = torch.zeros(len(places), dtype=made.dtype)
        for one in range(inner):
            between = torch.full_like(row, one)
            total += elements_of(a, ravelled([*batch, row, between], a.shape), memo) * elements_of(
                b, ravelled([*batch, between, column], b.shape), memo
            )
        return total

    return elements


_TABLE: dict[Any, Rule] = {
    "pointwise": _pointwise,
    **dict.fromkeys(
        (_aten._to_copy.default, _aten.clone.default, _aten.masked_fill.Scalar, _aten.masked_fill.Tensor, _aten.lift_fresh_copy.default),
        _pointwise,
    ),
    **dict.fromkeys(
        (
            _aten.view.default,
            _aten._unsafe_view.default,
            _aten._reshape_alias.default,
            _aten.unsqueeze.default,
            _aten.squeeze.default,
            _aten.squeeze.dim,
            _aten.squeeze.dims,
            _aten.alias.default,
            _aten.detach.default,
            _aten.lift_fresh.default,
        ),
        _same_places,
    ),
    **dict.fromkeys((_aten.permute.default, _aten.transpose.int, _aten.t.default), _permute),
    **dict.fromkeys((_aten.cat.default, _aten.stack.default), _joined),
    **dict.fromkeys((_aten.triu.default, _aten.tril.default), _triangle),
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default), _product),
    **dict.fromkeys((_aten.arange.default, _aten.arange.start, _aten.arange.start_step), _arange),
    **dict.fromkeys(
        (
            _aten.full.default,
            _aten.zeros.default,
            _aten.ones.default,
            _aten.full_like.default,
            _aten.zeros_like.default,
            _aten.ones_like.default,
            _aten.new_zeros.default,
            _aten.new_ones.default,
        ),
        _filled,
    ),
    _aten.expand.default: _expand,
    _aten.slice.Tensor: _slice,
    _aten.select.int: _select,
    _aten.unbind.int: _unbind,
    _aten.repeat.default: _repeat,
    _aten.flip.default: _flip,
    _aten.constant_pad_nd.default: _pad,
}
RULES |= _TABLE
