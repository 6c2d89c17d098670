"""Recognition of attention in its decomposed form: matmul, scale, mask, softmax, matmul → `flexspec::attention`."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.ir.onnx.fusion import is_call, permuted, reshaped
from flexspec.ir.onnx.mask import HIDDEN, mask_meaning
from flexspec.ir.onnx.values import Value
from flexspec.ir.ops import ATTENTION

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

_aten = torch.ops.aten
_VIEWS = {
    _aten.reshape.default,
    _aten.permute.default,
    _aten.unsqueeze.default,
    _aten.expand.default,
    _aten.repeat_interleave.self_int,
}


class _Scores(NamedTuple):
    """q @ k, and what happens to it before the softmax."""

    product: Value
    scale: float
    softcap: float | None
    masks: list[Value]


def recognised_attention(context: "ImportContext", node: NodeProto, probabilities: Value, values: Value) -> Value | None:
    """The result of probabilities @ values as attention, in the shape of that product; None if the probabilities are no softmax.

    Raises:
        UsageError: if it is a softmax of scores between tokens, but not attention of a form that is known.
    """
    softmax = probabilities
    while is_call(softmax, _aten.reshape.default):
        assert softmax.call is not None
        if any(one.shape[-2:] != given.shape[-2:] for one, given in zip(softmax.trials, softmax.call.args[0].trials, strict=True)):
            return None
        softmax = softmax.call.args[0]
    if not is_call(softmax, _aten.softmax.int):
        return None
    assert softmax.call is not None
    if softmax.call.args[1] % softmax.rank != softmax.rank - 1:
        raise context.refusal(node, f"the softmax of its scores is over dim {softmax.call.args[1]}, not over the keys, which are the last")
    scores = _scores(context, node, softmax.call.args[0])
    assert scores.product.call is not None
    a, b = scores.product.call.args
    q, q_scale = heads_of(context, node, a, a)
    k, k_scale = heads_of(context, node, b, a, transposed=True)
    v, v_scale = heads_of(context, node, values, a)
    if v_scale != 1:
        raise context.refusal(node, "its values are scaled")
    k, v = alike(context, k, v)
    meaning = mask_meaning(context, node, scores.masks, heads=q.dim(2))
    scale = scores.scale * q_scale * k_scale
    result = attention(context, q, k, v, scale=scale, window=meaning.window, softcap=scores.softcap, slopes=meaning.slopes)
    shapes = [[*p.shape[:-1], v.shape[-1]] for p, v in zip(probabilities.trials, values.trials, strict=True)]
    return reshaped(context, permuted(context, result, [0, 2, 1, 3]), shapes)


def alike(context: "ImportContext", k: Value, v: Value) -> tuple[Value, Value]:
    """Keys and values with as many heads: those that were found unrepeated are repeated where the others could not be."""
    heads = max(k.dim(2), v.dim(2))
    return k if k.dim(2) == heads else _repeated(context, k, heads), v if v.dim(2) == heads else _repeated(context, v, heads)


def _repeated(context: "ImportContext", x: Value, heads: int) -> Value:
    return context.call(_aten.repeat_interleave.self_int, x, heads // x.dim(2), 2)


def attention(
    context: "ImportContext",
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Value | None = None,
    slopes: Tensor | None = None,
) -> Value:
    """Causal attention: q [batch, length, heads, head_dim]; k and v with their own KV heads, not repeated; result as q."""
    if slopes is None:
        return context.call(ATTENTION, q, k, v, float(scale), window, softcap, sinks)
    return context.call(ATTENTION, q, k, v, float(scale), window, softcap, sinks, context.constant(slopes))


def _scores(context: "ImportContext", node: NodeProto, x: Value) -> _Scores:
    scale, softcap, masks = 1.0, None, []
    while not is_call(x, _aten.matmul.default):
        if x.call is None:
            raise context.refusal(node, "its scores are no product of queries and keys")
        target, args = x.call.target, x.call.args
        if target in (_aten.mul.Tensor, _aten.div.Tensor) and (factor := _number(args[1])) is not None:
            scale *= factor if target == _aten.mul.Tensor else 1 / factor
            x = args[0]
        elif target == _aten.tanh.default and softcap is None:
            softcap, scale, x = scale, 1.0, args[0]
        elif target == _aten.add.Tensor and softcap is None and (found := _mask_and_rest(args)) is not None:
            mask, x = found
            masks.append(mask if scale == 1 else context.call(_aten.mul.Tensor, mask, scale))
        elif target == _aten.where.self and softcap is None and args[0].is_token_free:
            mask, x = _chosen(context, node, *args)
            masks.append(mask)
        elif target == _aten.maximum.default and (found := _mask_and_rest(args)) is not None and _all_hidden(found[0]):
            x = found[1]
        elif target == _aten.reshape.default and all(
            one.shape[-2:] == given.shape[-2:] for one, given in zip(x.trials, args[0].trials, strict=True)
        ):
            x = args[0]
        else:
            raise context.refusal(node, f"its scores pass through {target} before the softmax, in a form that is not known")
    # What stands inside the tanh is scale / softcap.
    return _Scores(x, scale if softcap is None else scale * softcap, softcap, masks)


def _number(argument: Any) -> float | None:
    if isinstance(argument, Value):
        if not argument.is_token_free or not argument.trials[0].numel():
            return None
        number = float(argument.trials[0].reshape(-1)[0])
        return number if all(bool(torch.all(torch.eq(one, number))) for one in argument.trials) else None
    return float(argument)


def _mask_and_rest(args: tuple[Any, ...]) -> tuple[Value, Value] | None:
    a, b = args
    if isinstance(a, Value) and isinstance(b, Value) and a.is_token_free != b.is_token_free:
        return (a, b) if a.is_token_free else (b, a)
    return None


def _all_hidden(mask: Value) -> bool:
    return all(bool(torch.all(torch.le(one, HIDDEN))) for one in mask.trials)


def _chosen(context: "ImportContext", node: NodeProto, condition: Value, x: Value, y: Value) -> tuple[Value, Value]:
    """where(condition, scores, number) as a mask to add and the scores."""
    for scores, number, shown in ((x, y, True), (y, x, False)):
        if not scores.is_token_free and number.is_token_free and _all_hidden(number):
            added = (float("-inf"), 0.0) if shown else (0.0, float("-inf"))
            return context.derive(node, lambda one, a=added: torch.where(one, a[1], a[0]), condition), scores
    raise context.refusal(node, "its scores are chosen by a condition that is no mask")


def heads_of(context: "ImportContext", node: NodeProto, operand: Value, queries: Value, *, transposed: bool = False) -> tuple[Value, float]:
    """One operand of attention, [..., length, head_dim] (or its transpose), as [batch, length, heads, head_dim], and its constant factor.

    Where its heads are repeated, they are taken before that. What the chain of views and transposes between does is found by running it.
    """
    chain, scale = [operand], 1.0
    while (call := chain[-1].call) is not None:
        if call.target in _VIEWS:
            chain.append(call.args[0])
        elif call.target in (_aten.mul.Tensor, _aten.div.Tensor) and (factor := _number(call.args[1])) is not None:
            scale *= factor if call.target == _aten.mul.Tensor else 1 / factor
            chain.append(call.args[0])
        else:
            break
    # One head is broadcast to all queries by the product itself.
    heads = (queries if operand.trials[0].shape[-3:-2] != (1,) else operand).trials[0].shape[:-2].numel() // context.trials[0].batch
    for source in reversed(chain):
        order = _order(context, source, chain[: chain.index(source)], heads, transposed=transposed)
        if order is None:
            continue
        shapes = [
            [trial.batch, trial.length, -1, size] if order == "tokens first" else [trial.batch, -1, trial.length, size]
            for trial, size in zip(context.trials, [operand.dim(-2 if transposed else -1)] * len(context.trials), strict=True)
        ]
        filled = [list(one.new_empty(one.shape).reshape(shape).shape) for one, shape in zip(source.trials, shapes, strict=True)]
        split = reshaped(context, source, filled)
        return (split if order == "tokens first" else permuted(context, split, [0, 2, 1, 3])), scale
    raise context.refusal(node, "its queries, keys or values are laid out in a way that is not known")


def _order(context: "ImportContext", source: Value, chain: list[Value], heads: int, *, transposed: bool) -> str | None:
    """Which order of dims the elements of `source` must have for the chain to give [batch, heads, length, head_dim]."""
    trial = context.trials[0]
    index = torch.arange(source.trials[0].numel()).reshape(source.trials[0].shape)
    given = index
    for value in reversed(chain):
        assert value.call is not None
        if value.call.target in _VIEWS:
            has_shape = value.call.target in (_aten.reshape.default, _aten.expand.default)
            sizes = [list(value.trials[0].shape)] if has_shape else value.call.args[1:]
            given = value.call.target(given, *sizes)
    if transposed:
        given = given.transpose(-1, -2)
    head_dim = given.shape[-1]
    if given.shape[-2] != trial.length or given.numel() != trial.batch * heads * trial.length * head_dim:
        return None
    given = given.reshape(trial.batch, heads, trial.length, head_dim)
    own_heads, rest = divmod(index.numel(), trial.batch * trial.length * head_dim)
    if rest or not own_heads or heads % own_heads:
        return None
    for order, wanted in (
        ("tokens first", index.reshape(trial.batch, trial.length, own_heads, head_dim).transpose(1, 2)),
        ("heads first", index.reshape(trial.batch, own_heads, trial.length, head_dim)),
    ):
        if torch.equal(given, wanted.repeat_interleave(heads // own_heads, dim=1)):
            return order
    return None
