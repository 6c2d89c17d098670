"""Operators that are only another way to write others, as these: `.mT`, `movedim`, `view_as`, `einsum`, …"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_WRITTEN_OUT = {
    *("mT", "mH", "matrix_H", "adjoint", "swapaxes", "swapdims", "movedim", "moveaxis", "view_as", "reshape_as", "expand_as", "ravel"),
    *("narrow", "hsplit", "tensor_split", "hstack", "vstack", "dstack", "column_stack", "row_stack", "tile", "outer", "inner"),
    *("tensordot", "einsum", "multi_dot", "take_along_dim", "diff"),
}


def write_out_composites(model: ModelGraph) -> int:
    """Each of them → the operators that PyTorch itself makes of it; einsum of two operands → a product, in one form of all its forms.

    Returns:
        How many there were.
    """
    written = 0
    for node in list(model.graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target._opname not in _WRITTEN_OUT or not target._can_decompose():
            continue
        product = _product(model, node) if target == _aten.einsum.default else None
        if product is None:
            _decompose(model, node)
        else:
            node.replace_all_uses_with(product)
        written += 1
    if written:
        model.finish()
    return written


def _decompose(model: ModelGraph, node: fx.Node) -> None:
    inputs = [arg for arg in node.all_input_nodes if is_tensor(arg)]
    sizes = {arg: arg.meta["val"] for arg in node.all_input_nodes if not is_tensor(arg)}

    def call(*tensors: Tensor) -> Any:
        values = sizes | dict(zip(inputs, tensors, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        assert isinstance(node.target, torch._ops.OpOverload)
        return node.target.decompose(*args, **kwargs)

    with model.fake_mode, torch.no_grad():
        traced = make_fx(call)(*(fake(one) for one in inputs))
    values: dict[fx.Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with model.graph.inserting_before(node):
        for one in traced.graph.nodes:
            if one.op == "call_function":
                values[one] = model.graph.node_copy(one, values.__getitem__)
    result: Any = fx.node.map_arg(traced.graph.output_node().args[0], values.__getitem__)
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
        return
    for user in list(node.users):  # of a list, each reads one
        assert user.target == operator.getitem and isinstance(user.args[1], int)
        user.replace_all_uses_with(result[user.args[1]])


def _product(model: ModelGraph, node: fx.Node) -> fx.Node | None:
    """A product of moved operands, if an einsum is one of two: `linear` with a parameter, `matmul` for those with common labels."""
    equation: Any = node.args[0]
    operands: Any = node.args[1]
    inputs, _, output = equation.replace(" ", "").partition("->")
    labels = inputs.split(",")
    if len(labels) != 2 or not output or "." in equation or any(len(set(one)) < len(one) for one in (*labels, output)):
        return None
    (first, second), (a, b) = labels, operands
    if is_parameter(a) and not is_parameter(b):
        first, second, a, b = second, first, b, a
    shared = [one for one in first if one in second]
    batch, inner = [one for one in shared if one in output], [one for one in shared if one not in output]
    rows, columns = [one for one in first if one not in shared], [one for one in second if one not in shared]
    if not inner or set(output) != {*batch, *rows, *columns}:
        return None
    if batch and not len(rows) == len(inner) == len(columns) == 1:
        return None
    if not batch and not is_parameter(b):
        return None
    a = _moved(model, a, first, [*batch, *rows, *inner], node)
    b = _moved(model, b, second, [*batch, *inner, *columns], node)
    widths = list(fake(b).shape[len(inner) :])
    if not batch:
        b = model.emit(_aten.reshape.default, (b, [-1, math.prod(map(int, widths))]), before=node) if len(inner) + len(columns) != 2 else b
        a = model.emit(_aten.flatten.using_ints, (a, len(rows), len(first) - 1), before=node) if len(inner) > 1 else a
    if batch:
        product = model.emit(_aten.matmul.default, (a, b), before=node)
    else:
        product = model.emit(_aten.linear.default, (a, model.emit(_aten.t.default, (b,), before=node)), before=node)
    if not batch and len(columns) > 1:
        product = model.emit(_aten.unflatten.int, (product, len(rows), widths), before=node)
    return _moved(model, product, [*batch, *rows, *columns], list(output), node)


def _moved(model: ModelGraph, node: fx.Node, labels: Sequence[str], wanted: Sequence[str], before: fx.Node) -> fx.Node:
    order = [list(labels).index(one) for one in wanted]
    return node if order == sorted(order) else model.emit(_aten.permute.default, (node, order), before=before)
