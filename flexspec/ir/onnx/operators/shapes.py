"""ONNX operators that make constants, read shapes, and change the shape of a tensor but not its contents."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import is_call, permuted, reshaped
from flexspec.ir.onnx.operators.rules import checked_axis
from flexspec.ir.onnx.registry import operator
from flexspec.ir.onnx.values import Value, broadcast, one_int

_aten = torch.ops.aten


@operator("", "Constant")
def _constant(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if (numbers := context.attribute(node, name)) is not None:
            return [context.constant(torch.tensor(numbers, dtype=torch.float32 if "float" in name else torch.int64))]
    tensor = context.attribute(node, "value")
    if not isinstance(tensor, Tensor):
        raise context.refusal(node, "it holds no dense tensor of numbers")
    return [context.constant(tensor)]


@operator("", "ConstantOfShape")
def _constant_of_shape(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    fill = context.attribute(node, "value", torch.zeros(1))
    return [context.derive(node, lambda shape: fill.reshape(()).expand(shape.tolist()), context.input(node, 0))]


@operator("", "Range")
def _range(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    def numbers(start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
        if any(one.numel() != 1 for one in (start, limit, step)) or not step.item():
            raise context.refusal(node, f"its step is {step.tolist()}; start, limit and step must be one number each, and step not 0")
        return torch.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)

    return [context.derive(node, numbers, *(context.input(node, index) for index in range(3)))]


@operator("", "Shape")
def _shape(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    start, end = context.attribute(node, "start", 0), context.attribute(node, "end", None)
    value = context.input(node, 0)
    shape = value.shape[start:end]
    if all(isinstance(size, int) for size in shape):
        return [context.constant(torch.tensor(shape, dtype=torch.int64))]
    return [Value(tuple(torch.tensor(one.shape[start:end], dtype=torch.int64) for one in value.trials))]


@operator("", "Size")
def _size(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    return [Value(tuple(torch.tensor(one.numel()) for one in context.input(node, 0).trials))]


@operator("", "Reshape")
def _reshape(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, dims = context.input(node, 0), context.input(node, 1)
    context.ints(node, dims)
    copied = not context.attribute(node, "allowzero", 0)
    shapes = []
    for tensor, wanted in zip(x.trials, dims.trials, strict=True):
        shape = [tensor.shape[index] if size == 0 and copied else size for index, size in enumerate(wanted.tolist())]
        known = math.prod(size for size in shape if size != -1)
        shape = [tensor.numel() // max(known, 1) if size == -1 else size for size in shape]
        if math.prod(shape) != tensor.numel() or any(size < 0 for size in shape):
            raise context.refusal(node, f"its input has shape {list(tensor.shape)}, which can't become {wanted.tolist()}")
        shapes.append(shape)
    return [reshaped(context, x, shapes)]


@operator("", "Flatten")
def _flatten(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, axis = context.input(node, 0), context.attribute(node, "axis", 1)
    axis = axis if axis == x.rank else checked_axis(context, node, axis, x.rank)
    return [reshaped(context, x, [[math.prod(one.shape[:axis]), math.prod(one.shape[axis:])] for one in x.trials])]


def axes_of(context: ImportContext, node: NodeProto, index: int = 1) -> list[int] | None:
    """Axes, which are an attribute in old operator sets and an input in new ones; None if there are none."""
    if context.has_input(node, index):
        return [int(axis) for axis in context.known(node, context.input(node, index)).reshape(-1).tolist()]
    axes = context.attribute(node, "axes")
    return None if axes is None else list(axes)


@operator("", "Unsqueeze")
def _unsqueeze(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, axes = context.input(node, 0), axes_of(context, node) or []
    rank = x.rank + len(axes)
    places = sorted(checked_axis(context, node, axis, rank) for axis in axes)
    if len(set(places)) != len(places):
        raise context.refusal(node, f"its axes {axes} name a dim twice")
    for axis in places:
        x = context.call(_aten.unsqueeze.default, x, axis)
    return [x]


@operator("", "Squeeze")
def _squeeze(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, axes = context.input(node, 0), axes_of(context, node)
    if axes is None:
        axes = [index for index, size in enumerate(x.shape) if size == 1]
    gone = {checked_axis(context, node, axis, x.rank) for axis in axes}
    if any(x.shape[axis] != 1 for axis in gone):
        raise context.refusal(node, f"axes {axes} of shape {list(x.trials[0].shape)} are not all 1")
    return [reshaped(context, x, [[size for index, size in enumerate(one.shape) if index not in gone] for one in x.trials])]


@operator("", "Transpose")
def _transpose(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x = context.input(node, 0)
    return [permuted(context, x, context.attribute(node, "perm", list(range(x.rank))[::-1]))]


@operator("", "Expand")
def _expand(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x, dims = context.input(node, 0), context.input(node, 1)
    context.ints(node, dims)
    shapes = [broadcast(one.shape, wanted.tolist()) for one, wanted in zip(x.trials, dims.trials, strict=True)]
    if all(one.shape == shape for one, shape in zip(x.trials, shapes, strict=True)):
        return [x]
    return [context.call(_aten.expand.default, x, [one_int(sizes) for sizes in zip(*shapes, strict=True)])]


@operator("", "Tile")
def _tile(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    repeats = context.ints(node, context.input(node, 1))
    x = context.input(node, 0)
    if all(one == 1 for one in repeats):
        return [x]
    if len(repeats) == x.rank and all(times == 1 or size == 1 for times, size in zip(repeats, x.shape, strict=True)):
        sizes = [size if times == 1 else times for times, size in zip(repeats, x.shape, strict=True)]
        return [context.call(_aten.expand.default, x, sizes)]
    return [context.call(_aten.repeat.default, x, repeats)]


@operator("", "Concat")
def _concat(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    values = [context.input(node, index) for index in range(len(node.input))]
    axis = checked_axis(context, node, context.attribute(node, "axis"), values[0].rank)
    _check_joined(context, node, values, axis)
    # A cache is empty here.
    kept: list[Any] = [value for value in values if any(one.shape[axis] for one in value.trials)] or values[:1]
    if len(kept) == 1:
        return [kept[0]]
    if all(is_call(one, _aten.unsqueeze.default) and one.call.args[1] == axis for one in kept):
        return [context.call(_aten.stack.default, [one.call.args[0] for one in kept], axis)]
    return [context.call(_aten.cat.default, kept, axis)]


def _is_cache(value: Value) -> bool:
    """Whether it is an input for cached keys or values, which is empty."""
    return not value.is_token_free and value.call is None and value.node is None and not any(one.numel() for one in value.trials)


def _check_joined(context: ImportContext, node: NodeProto, values: Sequence[Value], axis: int) -> None:
    for tensors in zip(*(value.trials for value in values), strict=True):
        # An empty cache may have batch and heads in one dim, which its input does not say.
        others = {(*one.shape[:axis], *one.shape[axis + 1 :]) for one, value in zip(tensors, values, strict=True) if not _is_cache(value)}
        if len(others) > 1 or len({one.dim() for one in tensors}) > 1:
            listed = ", ".join(str(list(one.shape)) for one in tensors)
            raise context.refusal(node, f"it joins {listed} along dim {axis}; all other dims must be the same")


@operator("", "Pad")
def _pad(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    """Zeros or another number around what does not depend on the tokens, such as a mask."""
    if context.attribute(node, "mode", "constant") != "constant":
        raise context.refusal(node, "it pads with other elements; only one number is supported")
    x = context.input(node, 0)
    number = context.known(node, context.input(node, 2)).item() if context.has_input(node, 2) else 0
    axes = [checked_axis(context, node, axis, x.rank) for axis in axes_of(context, node, 3) or range(x.rank)]

    def padded(data: Tensor, pads: Tensor) -> Tensor:
        widths = [0] * (2 * x.rank)
        for place, axis in enumerate(axes):
            behind = 2 * (x.rank - 1 - axis)
            widths[behind : behind + 2] = int(pads[place]), int(pads[len(axes) + place])
        return torch.nn.functional.pad(data, widths, value=number)

    return [context.derive(node, padded, x, context.input(node, 1))]


@operator("", "Split")
def _split(context: ImportContext, node: NodeProto) -> Sequence[Value]:
    x = context.input(node, 0)
    axis = checked_axis(context, node, context.attribute(node, "axis", 0), x.rank)
    size = x.shape[axis]
    if not isinstance(size, int):
        raise context.refusal(node, "it divides batch or length")
    sizes = context.attribute(node, "split")
    if context.has_input(node, 1):
        sizes = context.known(node, context.input(node, 1)).tolist()
    if sizes is None:
        chunk = -(-size // len(node.output))
        sizes = [min(chunk, size - start) for start in range(0, size, chunk)]
    if any(one < 0 for one in sizes) or sum(sizes) != size or len(sizes) != len(node.output):
        raise context.refusal(node, f"{size} can't be divided into {sizes}")
    results, start = [], 0
    for length in sizes:
        results.append(context.call(_aten.slice.Tensor, x, axis, start, start + length))
        start += length
    return results
