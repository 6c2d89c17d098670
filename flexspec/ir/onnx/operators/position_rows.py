"""The rows of a position table that the tokens need, by the position input instead of whatever the graph computes positions from."""

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import reshaped
from flexspec.ir.onnx.values import Value, values_in

_aten = torch.ops.aten
_ROW_WISE = {_aten.matmul.default, _aten.linear.default, _aten.to.dtype, _aten.cat.default}


def same_positions(context: ImportContext, node: NodeProto, positions: Value) -> None:
    """Refuse position ids that are not the graph's own, in a sequence that is neither padded nor continued.

    Raises:
        UsageError: if they don't count 0, 1, 2, …; an offset [1] must be 0.
    """
    if not positions.is_token_free:
        raise context.refusal(node, "its positions depend on the tokens, which is not supported")
    for trial, given in zip(context.trials, positions.trials, strict=True):
        counted = torch.arange(trial.length)
        if given.shape[-1:] == (trial.length,) and given.dim() == 2 and bool((given == counted).all()):
            continue
        if given.shape == (1,) and not given.any():
            continue
        raise context.refusal(node, "its positions do not count 0, 1, 2, … along each sequence; such positions are not supported")


def rows_by(context: ImportContext, node: NodeProto, table: Value, positions: Value) -> Value:
    """The rows of a table [rows, columns] that position ids [batch, length] or [1] ask for; [batch, length, columns].

    A table may have a row for each token of the batch, in order, and the ids be the numbers of these rows.

    Raises:
        UsageError: if these are not positions, or the table depends on anything but positions.
    """
    if not table.is_constant and table.rank == 2 and table.is_token_free and _are_row_numbers(context, positions):
        return reshaped(context, table, [[*trial, one.shape[-1]] for trial, one in zip(context.trials, table.trials, strict=True)])
    same_positions(context, node, positions)
    return rows_at(context, node, table)


def _are_row_numbers(context: ImportContext, positions: Value) -> bool:
    return positions.is_token_free and all(
        tuple(given.shape) == (trial.batch, trial.length) and torch.equal(given.flatten(), torch.arange(trial.batch * trial.length))
        for trial, given in zip(context.trials, positions.trials, strict=True)
    )


def rows_at(context: ImportContext, node: NodeProto, table: Value) -> Value:
    """The rows of a table [positions, columns] at the position input; [batch, length, columns].

    A table that the graph computes for the positions 0, 1, 2, … is computed for the tokens' positions instead.

    Raises:
        UsageError: if the table depends on anything but positions.
    """
    if table.rank != 2 or not table.is_token_free:
        raise context.refusal(
            node, f"its table has shape {list(table.trials[0].shape)}; it must be [positions, columns] and no token's own"
        )
    if table.is_constant:
        longest = max(trial.length for trial in context.trials)
        if table.dim(0) < longest:
            raise context.refusal(node, f"its table has {table.dim(0)} positions; it must have at least {longest}")
        return context.call(_aten.embedding.default, table, context.positions)
    rows = _rebuilt(context, table, {})
    if rows is None or not all(
        torch.allclose(made, given[: trial.length].expand_as(made), rtol=1e-5, atol=1e-6)
        for trial, given, made in zip(context.trials, table.trials, rows.trials, strict=True)
    ):
        raise context.refusal(
            node, "its table is computed, but not row by row from the positions 0, 1, 2, …; such a table is not supported"
        )
    return rows


def _rebuilt(context: ImportContext, value: Value, found: dict[Value, Value | None]) -> Value | None:
    """What is computed row by row from a column of positions [n, 1], computed from the position input [batch, length, 1] instead."""
    if value not in found:
        found[value] = _rebuilt_anew(context, value, found)
    return found[value]


def _rebuilt_anew(context: ImportContext, value: Value, found: dict[Value, Value | None]) -> Value | None:
    if value.is_constant:
        return value if value.rank < 3 else None
    if value.rank == 2 and all(
        column.shape[-1] == 1 and torch.equal(column[:, 0].double(), torch.arange(len(column), dtype=torch.float64))
        for column in value.trials
    ):
        column = context.call(_aten.unsqueeze.default, context.positions, 2)
        return context.call(_aten.to.dtype, column, value.dtype) if value.dtype != column.dtype else column
    call = value.call
    if call is None or value.rank != 2:
        return None
    if call.target not in _ROW_WISE and torch.Tag.pointwise not in getattr(call.target, "tags", ()):
        return None
    args = call.args
    if call.target == _aten.cat.default:
        if args[1:] not in ((-1,), (1,)):
            return None
        args = (args[0], -1)
    made = {source: _rebuilt(context, source, found) for source in values_in((args, tuple(call.kwargs.values())))}
    if any(one is None for one in made.values()):
        return None

    def replaced(argument: object) -> object:
        if isinstance(argument, Value):
            return made[argument]
        return type(argument)(replaced(one) for one in argument) if isinstance(argument, list | tuple) else argument

    return context.call(call.target, *(replaced(one) for one in args), **{name: replaced(one) for name, one in call.kwargs.items()})
