"""ONNX operators that pick elements."""

import math
from collections.abc import Sequence

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import is_call, permuted, reshaped
from flexspec.ir.onnx.operators.rules import checked_axis
from flexspec.ir.onnx.positions import position_offset
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Int, Size, Value, one_int

_aten = torch.ops.aten
_END = 2**63 - 1


@operator("", "Gather")
def _gather(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, index = context.input(node, 0), context.input(node, 1)
    return [_looked_up(context, node, x, index, checked_axis(context, node, context.attribute(node, "axis", 0), x.rank))]


def _looked_up(context: ImportContext, node: NodeProto, x: Value, index: Value, axis: int) -> Value:
    if x.rank == 2 and axis == 0 and index.rank and not index.is_constant and x.is_floating_point:
        table = _whole_table(x)
        if not index.is_token_free and table.is_constant:
            context.embeddings.append(table)
        return context.call(_aten.embedding.default, table, index)
    if index.is_token_free and index.rank == 0 and isinstance(place := one_int([int(one) for one in index.trials]), int):
        if any(not -one.shape[axis] <= place < one.shape[axis] for one in x.trials):
            raise context.refusal(node, f"index {place} is outside of {list(x.trials[0].shape)}")
        return context.call(_aten.select.int, x, axis, place)
    if x.is_token_free and index.is_token_free:
        return context.derive(node, lambda data, places: _taken(data, places, axis), x, index)
    if not index.is_token_free:
        raise context.refusal(node, "it looks up by the tokens in what is no table [rows, columns]")
    index = _from_begin(context, node, index, [one.shape[axis] for one in x.trials])
    if (part := _adjacent(context, x, index, axis)) is not None:
        return part
    flat = context.call(_aten.index_select.default, x, axis, reshaped(context, index, [[one.numel()] for one in index.trials]))
    shapes = [[*one.shape[:axis], *i.shape, *one.shape[axis + 1 :]] for one, i in zip(x.trials, index.trials, strict=True)]
    return reshaped(context, flat, shapes)


def _from_begin(context: ImportContext, node: NodeProto, index: Value, sizes: Sequence[int]) -> Value:
    """Indices into a dim of some size at each trial, those that count from its end counted from its begin."""
    for places, size in zip(index.trials, sizes, strict=True):
        if bool(((places < -size) | (places >= size)).any()):
            raise context.refusal(node, f"an index is outside of its dim of {size}")
    if not any(bool((places < 0).any()) for places in index.trials):
        return index
    wrapped = tuple(torch.where(places < 0, places + size, places) for places, size in zip(index.trials, sizes, strict=True))
    return context.constant(wrapped[0]) if index.is_constant and len(set(sizes)) == 1 else Value(wrapped)


def _adjacent(context: ImportContext, x: Value, index: Value, axis: int) -> Value | None:
    """Neighbours as a slice, which is taken before a transpose."""
    places = index.trials[0].reshape(-1)
    size = x.shape[axis]
    if index.rank != 1 or not index.is_constant or not isinstance(size, int) or not len(places):
        return None
    first = int(places[0])
    if not torch.equal(places.long(), torch.arange(first, first + len(places))):
        return None
    if is_call(x, _aten.permute.default):
        assert x.call is not None
        source, order = x.call.args
        part = context.call(_aten.slice.Tensor, source, order[axis], first, first + len(places))
        return permuted(context, part, order)
    return context.call(_aten.slice.Tensor, x, axis, first, first + len(places))


def _taken(data: Tensor, places: Tensor, axis: int) -> Tensor:
    places = torch.where(places < 0, places + data.shape[axis], places).long()
    shape = [*data.shape[:axis], *places.shape, *data.shape[axis + 1 :]]
    return data.index_select(axis, places.reshape(-1)).reshape(shape)


def _whole_table(x: Value) -> Value:
    """A constant table instead of its first rows: how many are taken is the length, which no position exceeds."""
    call = x.call
    if (
        call is not None
        and call.target == _aten.slice.Tensor
        and call.args[1:3] == (0, 0)
        and len(call.args) == 4
        and call.args[0].is_constant
    ):
        table: Value = call.args[0]
        return table
    return x


@operator("", "GatherElements")
def _gather_elements(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, index = context.input(node, 0), context.input(node, 1)
    axis = checked_axis(context, node, context.attribute(node, "axis", 0), x.rank)
    if (rows := _rows_of_positions(context, x, index, axis)) is not None:
        return [rows]
    return [context.derive(node, lambda x, index: torch.gather(x, axis, torch.where(index < 0, index + x.shape[axis], index)), x, index)]


def _rows_of_positions(context: ImportContext, x: Value, index: Value, axis: int) -> Value | None:
    """The rows of a table, repeated for the batch [batch, rows, columns], at positions that are repeated for all columns."""
    if (x.rank, index.rank, axis) != (3, 3, 1) or not x.is_token_free or not index.is_token_free or x.shape[2] != index.shape[2]:
        return None
    table = x.trials[0][0]
    if not all(one.shape[1:] == table.shape and bool((one == table).all()) for one in x.trials):
        return None
    first = Value(tuple(one[:, :, :1] for one in index.trials))
    if position_offset(first, context.trials) != (1, 0) or not all(bool((one == one[:, :, :1]).all()) for one in index.trials):
        return None
    if any(trial.length > len(table) for trial in context.trials):
        return None
    return context.call(_aten.embedding.default, context.constant(table), context.positions)


@operator("", "NonZero")
def _non_zero(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [context.derive(node, lambda x: torch.nonzero(x).t().contiguous(), context.input(node, 0))]


@operator("", "GatherND")
def _gather_nd(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    if context.attribute(node, "batch_dims", 0):
        raise context.refusal(node, "batch_dims other than 0 are not supported")
    x, index = context.input(node, 0), context.input(node, 1)
    if index.rank > 1 and index.shape[-1] == 1:  # as Gather
        return [_looked_up(context, node, x, reshaped(context, index, [list(one.shape[:-1]) for one in index.trials]), 0)]
    if (merged := _all_places(context, x, index)) is not None:
        return [merged]
    return [context.derive(node, lambda x, index: x[index.unbind(-1)], x, index)]


def _all_places(context: ImportContext, x: Value, index: Value) -> Value | None:
    """The first dims merged, if all their places are picked in order, as exporters write a repetition."""
    dims = x.shape[: index.trials[0].shape[-1]] if index.is_token_free and index.rank == 2 else []
    sizes = [size for size in dims if isinstance(size, int)]
    if not dims or len(sizes) < len(dims) or any(len(one) != math.prod(sizes) for one in index.trials):
        return None
    places = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))
    if not all(torch.equal(one.long(), places) for one in index.trials):
        return None
    return reshaped(context, x, [[len(places), *one.shape[len(sizes) :]] for one in x.trials])


@operator("", "ScatterND")
def _scatter_nd(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    if context.attribute(node, "reduction", "none") != "none":
        raise context.refusal(node, "a reduction is not supported")
    values = (context.input(node, index) for index in range(3))
    return [context.derive(node, lambda x, index, updates: x.clone().index_put(index.unbind(-1), updates), *values)]


@operator("", "ScatterElements")
def _scatter_elements(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    if context.attribute(node, "reduction", "none") != "none":
        raise context.refusal(node, "a reduction is not supported")
    x, index, updates = (context.input(node, index) for index in range(3))
    axis = checked_axis(context, node, context.attribute(node, "axis", 0), x.rank)

    def scattered(x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
        return torch.scatter(x, axis, torch.where(index < 0, index + x.shape[axis], index), updates)

    return [context.derive(node, scattered, x, index, updates)]


@operator("", "Trilu")
def _trilu(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    function = torch.triu if context.attribute(node, "upper", 1) else torch.tril
    diagonal = int(context.known(node, context.input(node, 1))) if context.has_input(node, 1) else 0
    return [context.derive(node, lambda x: function(x, diagonal), context.input(node, 0))]


@operator("", "CumSum")
def _cumsum(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    if context.attribute(node, "exclusive", 0) or context.attribute(node, "reverse", 0):
        raise context.refusal(node, "exclusive and reverse are not supported")
    axis = checked_axis(context, node, int(context.known(node, context.input(node, 1))), context.input(node, 0).rank)
    return [context.derive(node, lambda x: torch.cumsum(x, axis, dtype=x.dtype), context.input(node, 0))]


@operator("", "Slice")
def _slice(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x = context.input(node, 0)
    starts, ends = _numbers(context, node, "starts", 1), _numbers(context, node, "ends", 2)
    if starts is None or ends is None:
        raise context.refusal(node, "its starts or ends are missing")
    axes = _numbers(context, node, "axes", 3) or list(range(len(starts)))
    steps = _numbers(context, node, "steps", 4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if isinstance(axis, Size) or not -x.rank <= axis < x.rank:
            raise context.refusal(node, f"axis {axis} of {x.rank} dims")
        x = _sliced(context, node, x, axis % x.rank, start, end, step)
    return [x]


def _numbers(context: ImportContext, node: NodeProto, name: str, index: int) -> list[Int] | None:
    if context.has_input(node, index):
        return context.ints(node, context.input(node, index))
    numbers = context.attribute(node, name)
    return None if numbers is None else list(numbers)


def _sliced(context: ImportContext, node: NodeProto, x: Value, axis: int, start: Int, end: Int, step: Int) -> Value:
    if step == -1:
        return context.derive(node, lambda data: data.flip(axis), _sliced_backwards(context, node, x, axis, start, end))
    if not isinstance(step, int) or step < 1:
        raise context.refusal(node, f"step {step} is not supported")
    sizes = [one.shape[axis] for one in x.trials]
    first, last = _clamped(start, sizes), _clamped(end, sizes)
    if first == 0 and step == 1 and all(stop == size for stop, size in zip(_spread(last, sizes), sizes, strict=True)):
        return x
    if all(stop == size for stop, size in zip(_spread(last, sizes), sizes, strict=True)):
        last = _END
    elif isinstance(end, int) and end >= 0:
        last = end
    return context.call(_aten.slice.Tensor, x, axis, first, last, *([step] if step != 1 else []))


def _sliced_backwards(context: ImportContext, node: NodeProto, x: Value, axis: int, start: Int, end: Int) -> Value:
    sizes = [one.shape[axis] for one in x.trials]
    whole_start = all(one in (-1, size - 1) or one >= size for one, size in zip(_spread(start, sizes), sizes, strict=True))
    if not whole_start or any(one >= -size for one, size in zip(_spread(end, sizes), sizes, strict=True)):
        raise context.refusal(node, "only a whole dim can be reversed")
    return x


def _spread(number: Int, sizes: Sequence[int]) -> Sequence[int]:
    return number.trials if isinstance(number, Size) else [number] * len(sizes)


def _clamped(number: Int, sizes: Sequence[int]) -> Int:
    """A start or end as an index from 0 to the dim's size."""
    numbers = _spread(number, sizes)
    return one_int([min(max(one + size if one < 0 else one, 0), size) for one, size in zip(numbers, sizes, strict=True)])
