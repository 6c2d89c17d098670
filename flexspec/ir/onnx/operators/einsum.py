"""Einsum of one or two tensors, as products, sums and transpositions."""

import string
from collections.abc import Sequence

import torch
from onnx import NodeProto

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import fused_mul, permuted, reshaped
from flexspec.ir.onnx.operators.products import product
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten


@operator("", "Einsum")
def _einsum(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    values = [context.input(node, index) for index in range(len(node.input))]
    terms, wanted = _labels(context, node, [value.rank for value in values])
    if len(values) == 1:
        return [_ordered(context, values[0], terms[0], wanted)]
    if len(values) > 2:
        raise context.refusal(node, f"it multiplies {len(values)} tensors; two are supported")
    (a, b), (of_a, of_b) = values, terms
    if a.is_constant:
        (a, b), (of_a, of_b) = (b, a), (of_b, of_a)
    a, of_a = _summed(context, a, of_a, of_b + wanted)
    b, of_b = _summed(context, b, of_b, of_a + wanted)
    shared = [one for one in of_a if one in of_b and one not in wanted]
    if not shared:
        return [fused_mul(context, _spread(context, a, of_a, wanted), _spread(context, b, of_b, wanted))]
    batch = [one for one in wanted if one in of_a and one in of_b]
    rows, columns = ([one for one in wanted if one in own and one not in batch] for own in (of_a, of_b))
    left = permuted(context, a, [of_a.index(one) for one in (*batch, *rows, *shared)])
    left = _grouped(context, left, len(batch), len(rows), is_merged=bool(batch))
    right = permuted(context, b, [of_b.index(one) for one in (*batch, *shared, *columns)])
    right = _grouped(context, right, len(batch), len(shared), is_merged=True)
    made = product(context, node, left, right)
    dims = [[*_dims(a, of_a, (*batch, *rows), trial), *_dims(b, of_b, columns, trial)] for trial in range(len(context.trials))]
    made = reshaped(context, made, dims)
    order = [*batch, *rows, *columns]
    return [permuted(context, made, [order.index(one) for one in wanted])]


def _labels(context: ImportContext, node: NodeProto, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; an ellipsis is spelled out in capitals."""
    equation = str(context.attribute(node, "equation", "")).replace(" ", "")
    given, arrow, wanted = equation.partition("->")
    terms = given.split(",")
    if len(terms) != len(ranks) or not arrow:
        raise context.refusal(node, f"its equation {equation!r} does not say what becomes of {len(ranks)} tensors")
    hidden = max(rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True))
    spare = [letter for letter in string.ascii_uppercase if letter not in equation][: max(hidden, 0)]
    spelled = []
    for term, rank in zip(terms, ranks, strict=True):
        missing = rank - len(term.replace("...", ""))
        spelled.append(term.replace("...", "".join(spare[len(spare) - missing :]) if missing > 0 else ""))
    wanted = wanted.replace("...", "".join(spare))
    if any(len(term) != rank or len(set(term)) != rank for term, rank in zip(spelled, ranks, strict=True)) or len(set(wanted)) != len(
        wanted
    ):
        raise context.refusal(node, f"its equation {equation!r} does not fit tensors of {', '.join(map(str, ranks))} dims, each named once")
    if not set(wanted) <= set("".join(spelled)):
        raise context.refusal(node, f"its equation {equation!r} has letters in its result that no tensor has")
    return spelled, wanted


def _summed(context: ImportContext, x: Value, labels: str, kept: str) -> tuple[Value, str]:
    """Without the dims that nothing else has."""
    gone = [dim for dim, one in enumerate(labels) if one not in kept]
    if not gone:
        return x, labels
    return context.call(_aten.sum.dim_IntList, x, gone, False), "".join(one for one in labels if one in kept)


def _ordered(context: ImportContext, x: Value, labels: str, wanted: str) -> Value:
    x, labels = _summed(context, x, labels, wanted)
    return permuted(context, x, [labels.index(one) for one in wanted])


def _spread(context: ImportContext, x: Value, labels: str, wanted: str) -> Value:
    """Its dims where the result has them, 1 where it has others."""
    x = _ordered(context, x, labels, "".join(one for one in wanted if one in labels))
    for place, one in enumerate(wanted):
        if one not in labels:
            x = context.call(_aten.unsqueeze.default, x, place)
    return x


def _grouped(context: ImportContext, x: Value, batch: int, first: int, *, is_merged: bool) -> Value:
    """[batch dims, first dims, other dims] as [batch dims, first, other], the first ones as they are unless `is_merged`."""
    middle = batch + first
    shapes = []
    for one in x.trials:
        head = [one.shape[batch:middle].numel()] if is_merged else list(one.shape[batch:middle])
        shapes.append([*one.shape[:batch], *head, one.shape[middle:].numel()])
    return reshaped(context, x, shapes)


def _dims(x: Value, labels: str, wanted: Sequence[str], trial: int) -> list[int]:
    return [x.trials[trial].shape[labels.index(one)] for one in wanted]
