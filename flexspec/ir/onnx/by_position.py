"""What a graph computes for each position without a batch, [length, ...], computed from the position input, [batch, length], instead.

Such are position embeddings and rotary tables that are counted by `arange(length)` or cut out of a table.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flexspec.ir.onnx.values import Size, Value, values_in

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

_aten = torch.ops.aten
_ROW_WISE = {_aten.to.dtype, _aten.linear.default, _aten.matmul.default}
_ALONG = {_aten.cat.default, _aten.stack.default, _aten.slice.Tensor, _aten.select.int, _aten.index_select.default}

Found = dict[Value, Value | None]


def with_positions(context: "ImportContext", arguments: Sequence[Any], found: Found) -> list[Any]:
    """Arguments of an element-wise operator, those that are counted without a batch replaced by what the position input gives."""
    rank = max(one.rank for one in values_in(tuple(arguments)))
    return [_argument(context, one, rank, found) if isinstance(one, Value) else one for one in arguments]


def _argument(context: "ImportContext", value: Value, rank: int, found: Found) -> Value:
    if not value.is_token_free or value.is_constant or not _is_counted(context, value):
        return value
    made = _by_position(context, value, found)
    if made is None or made.rank > rank or not _is_alike(context, value, made):
        return value
    return _padded(context, made, rank)


def _is_counted(context: "ImportContext", value: Value) -> bool:
    """Whether a value without a batch, [length, ...], is part of what it was computed from."""
    waiting, seen = [value], {value}
    while waiting:
        one = waiting.pop()
        if _is_led(context, one):
            return True
        if one.call is not None:
            new = [each for each in values_in((one.call.args, tuple(one.call.kwargs.values()))) if each not in seen]
            seen.update(new)
            waiting += new
    return False


def _is_led(context: "ImportContext", value: Value) -> bool:
    """Whether it is [length, ...], its other dims fixed."""
    return value.rank > 0 and value.shape[0] == context.length and not any(isinstance(size, Size) for size in value.shape[1:])


def _is_batched(context: "ImportContext", value: Value) -> bool:
    """Whether it is [batch or 1, ...] with one other dim that is not fixed."""
    return value.rank > 1 and value.shape[0] in (1, context.batch) and sum(isinstance(size, Size) for size in value.shape[1:]) == 1


def _is_alike(context: "ImportContext", value: Value, made: Value) -> bool:
    for old, new in zip(value.trials, made.trials, strict=True):
        whole = old.unsqueeze(0) if _is_led(context, value) else old
        if not torch.allclose(new, whole.expand_as(new), rtol=1e-5, atol=1e-6):
            return False
    return True


def _padded(context: "ImportContext", value: Value, rank: int) -> Value:
    """Its batch before all other dims of so many."""
    while value.rank < rank:
        value = context.call(_aten.unsqueeze.default, value, 1)
    return value


def _by_position(context: "ImportContext", value: Value, found: Found) -> Value | None:
    """With a batch before the length, or in place of a first dim of 1; None if it is not computed position by position."""
    if value not in found:
        found[value] = _made(context, value, found)
    return found[value]


def _made(context: "ImportContext", value: Value, found: Found) -> Value | None:
    is_led = _is_led(context, value)
    if not is_led and not _is_batched(context, value):
        return None
    if is_led and (positions := _positions(context, value)) is not None:
        return positions
    call = value.call
    if call is None:
        return None
    target, args, more = call.target, call.args, int(is_led)
    if (rows := _rows(context, value, found)) is not None:
        return rows
    source = args[0] if isinstance(args[0], Value) else None
    if target == _aten.unsqueeze.default:
        return _unsqueezed(context, source, args[1] % value.rank, found)
    if target in (_aten.reshape.default, _aten.expand.default) and source is not None:
        made = _by_position(context, source, found)
        return None if made is None else context.call(target, made, [context.batch, *value.shape[1 - more :]])
    if target in _ALONG or target == _aten.permute.default:
        return _along(context, value, found, more)
    if target not in _ROW_WISE and torch.Tag.pointwise not in getattr(target, "tags", ()):
        return None
    made_of = [_operand(context, one, value.rank + more, found) if isinstance(one, Value) else one for one in args]
    return None if any(one is None for one in made_of[: len(values_in(args))]) else context.call(target, *made_of, **call.kwargs)


def _operand(context: "ImportContext", value: Value, rank: int, found: Found) -> Value | None:
    if value.is_constant:
        return value if value.rank < rank or value.trials[0].shape[0] == 1 else None
    made = _by_position(context, value, found)
    return None if made is None or made.rank > rank else _padded(context, made, rank)


def _positions(context: "ImportContext", value: Value) -> Value | None:
    """0, 1, 2, … plus an offset, all other dims 1."""
    first = value.trials[0].reshape(-1)
    if any(size != 1 for size in value.shape[1:]) or value.dtype == torch.bool or not float(first[0]).is_integer():
        return None
    offset = int(first[0])
    for one, trial in zip(value.trials, context.trials, strict=True):
        if not torch.equal(one.reshape(-1), (torch.arange(trial.length) + offset).to(one.dtype)):
            return None
    made = context.positions if not offset else context.call(_aten.add.Tensor, context.positions, offset)
    if value.dtype != made.dtype:
        made = context.call(_aten.to.dtype, made, value.dtype)
    for _ in range(value.rank - 1):
        made = context.call(_aten.unsqueeze.default, made, made.rank)
    return made


def _rows(context: "ImportContext", value: Value, found: Found) -> Value | None:
    """Rows of a constant table [rows, columns], looked up or cut out."""
    assert value.call is not None
    target, args = value.call.target, value.call.args
    table = args[0]
    if not isinstance(table, Value) or not table.is_constant or table.rank != 2:
        return None
    if target == _aten.embedding.default:
        places = _by_position(context, args[1], found)
    elif target == _aten.index_select.default and args[1] == 0:
        places = _by_position(context, args[2], found)
    elif target == _aten.slice.Tensor and args[1] == 0 and isinstance(args[2], int) and len(args) == 4:
        places = context.positions if not args[2] else context.call(_aten.add.Tensor, context.positions, args[2])
    else:
        return None
    return None if places is None else context.call(_aten.embedding.default, table, places)


def _unsqueezed(context: "ImportContext", source: Value | None, dim: int, found: Found) -> Value | None:
    made = None if source is None else _by_position(context, source, found)
    if source is None or made is None:
        return None
    if _is_led(context, source):
        return made if dim == 0 else context.call(_aten.unsqueeze.default, made, dim + 1)
    return context.call(_aten.unsqueeze.default, made, max(dim, 1))


def _along(context: "ImportContext", value: Value, found: Found, more: int) -> Value | None:
    """Operators along a dim behind the first one."""
    assert value.call is not None
    target, args = value.call.target, value.call.args
    parts = list(args[0]) if isinstance(args[0], list | tuple) else [args[0]]
    made = [_by_position(context, one, found) for one in parts]
    if any(one is None for one in made) or len({one.rank for one in parts}) != 1:
        return None
    if target == _aten.permute.default:
        order = [dim % value.rank for dim in args[1]]
        return None if order[0] else context.call(target, made[0], [0, *(dim + 1 for dim in order)] if more else order)
    dim = (args[1] if len(args) > 1 else 0) % (parts[0].rank + (target == _aten.stack.default))
    if dim == 0 or _is_led(context, parts[0]) != bool(more):
        return None
    return context.call(target, made if isinstance(args[0], list | tuple) else made[0], dim + more, *args[2:])
