"""Graphs that give the logits of a text's last token alone: those of all tokens are computed instead."""

from typing import TYPE_CHECKING, Any

import torch

from flexspec.ir.onnx.fusion import is_call
from flexspec.ir.onnx.values import Value, at_trial, values_in

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

_aten = torch.ops.aten
_ROW_WISE = {_aten.linear.default, _aten.layer_norm.default, _aten.rms_norm.default, _aten.to.dtype}


def of_all_tokens(context: "ImportContext", logits: Value) -> Value:
    """Logits [batch, length, vocabulary] of all tokens; what is given if it is no row-wise function of the last token's hidden state.

    What is between that state and the logits must work on each row by itself, and read nothing else that depends on the tokens.
    """
    if logits.rank != 3 or logits.is_token_free or logits.shape[1] != 1:
        return logits
    return _rebuilt(context, logits, {}) or logits


def _rebuilt(context: "ImportContext", value: Value, found: dict[Value, Value | None]) -> Value | None:
    if value not in found:
        found[value] = _rebuilt_anew(context, value, found)
    return found[value]


def _rebuilt_anew(context: "ImportContext", value: Value, found: dict[Value, Value | None]) -> Value | None:
    call = value.call
    if call is None or value.is_token_free:
        return None
    if (source := _all_rows(context, value)) is not None:
        return source
    if call.target not in _ROW_WISE and torch.Tag.pointwise not in getattr(call.target, "tags", ()):
        return None
    made = {}
    for one in values_in((call.args, tuple(call.kwargs.values()))):
        if not one.is_constant:
            if (rows := _rebuilt(context, one, found)) is None:
                return None
            made[one] = rows
    args, kwargs = (_replaced(given, made) for given in (call.args, dict(call.kwargs)))
    return context.call(call.target, *args, **kwargs)


def _replaced(argument: Any, made: dict[Value, Value]) -> Any:
    return torch.utils._pytree.tree_map_only(Value, lambda one: made.get(one, one), argument)


def _all_rows(context: "ImportContext", value: Value) -> Value | None:
    """What a value is the last row of, [batch, length, ...]; None if it is something else."""
    call = value.call
    assert call is not None
    if is_call(value, _aten.unsqueeze.default) and call.args[1] == 1 and is_call(call.args[0], _aten.select.int):
        call = call.args[0].call
    elif call.target not in (_aten.slice.Tensor, _aten.index_select.default):
        return None
    source: Value = call.args[0]
    if call.args[1] != 1 or any(tuple(one.shape[:2]) != tuple(trial) for one, trial in zip(source.trials, context.trials, strict=True)):
        return None
    for index, trial in enumerate(context.trials):
        args = [at_trial(one, index) for one in call.args[2:]]
        if call.target(torch.arange(trial.length), 0, *args).reshape(-1).tolist() != [trial.length - 1]:
            return None
    return source
