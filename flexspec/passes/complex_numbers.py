"""Complex numbers, as LLaMA's own code and Llama 4 rotate pairs of dims with them → their real and imaginary parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.heads import is_move

_aten = torch.ops.aten
_CASTS = {_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device, _aten._to_copy.default}
_Parts = tuple[fx.Node, fx.Node]


def take_complex_apart(model: ModelGraph) -> int:
    """view_as_real(view_as_complex(x) * polar(1, angles)) → stack(…) of products and sums of real values.

    Returns:
        How many values there were that were read as real ones; those made in ways that are not known stay.
    """
    apart = _Apart(model)
    taken = 0
    for node in model.nodes(_aten.view_as_real.default, _aten.real.default, _aten.imag.default):
        source = node.args[0]
        parts = apart.parts(source) if is_tensor(source) and fake(source).is_complex() else None
        if parts is None:
            continue
        if node.target == _aten.view_as_real.default:
            new = model.emit(_aten.stack.default, (list(parts), -1), before=node)
        else:
            new = parts[node.target == _aten.imag.default]
        node.replace_all_uses_with(new)
        taken += 1
    if taken:
        model.finish()
    return taken


class _Apart:
    """Real and imaginary parts of values, each emitted once."""

    def __init__(self, model: ModelGraph) -> None:
        self.model = model
        self._known: dict[fx.Node, _Parts | None] = {}

    def parts(self, node: Any) -> _Parts | None:
        if node not in self._known:
            self._known[node] = self._parts(node)
        return self._known[node]

    def _parts(self, node: fx.Node) -> _Parts | None:
        def emit(target: Callable[..., Any], *args: Any) -> fx.Node:
            return self.model.emit(target, args, before=node)

        args: tuple[Any, ...] = node.args
        if node.op == "get_attr":
            return self._parts_of_parameter(node)
        if node.target == _aten.view_as_complex.default:
            return emit(_aten.select.int, args[0], -1, 0), emit(_aten.select.int, args[0], -1, 1)
        if node.target == _aten.complex.default:
            return args[0], args[1]
        if node.target == _aten.polar.default:
            size, angle = args
            return emit(_aten.mul.Tensor, size, emit(_aten.cos.default, angle)), emit(
                _aten.mul.Tensor, size, emit(_aten.sin.default, angle)
            )
        if is_move(node) or node.target in _CASTS:
            source = self._of_operand(args[0])
            if source is None or not is_move(node):
                return source
            assert callable(node.target)
            return emit(node.target, source[0], *args[1:]), emit(node.target, source[1], *args[1:])
        if node.target == _aten.mul.Tensor and len(args) == 2:
            return self._product(node)
        return None

    def _of_operand(self, operand: Any) -> _Parts | None:
        return self.parts(operand) if is_tensor(operand) and fake(operand).is_complex() else None

    def _product(self, node: fx.Node) -> _Parts | None:
        def emit(target: Callable[..., Any], *args: Any) -> fx.Node:
            return self.model.emit(target, args, before=node)

        first, second = map(self._of_operand, node.args)
        if first is None or second is None:
            whole, factor = (first, node.args[1]) if second is None else (second, node.args[0])
            if whole is None or isinstance(factor, complex) or (is_tensor(factor) and fake(factor).is_complex()):
                return None
            return emit(_aten.mul.Tensor, whole[0], factor), emit(_aten.mul.Tensor, whole[1], factor)
        (a, b), (c, d) = first, second
        real = emit(_aten.sub.Tensor, emit(_aten.mul.Tensor, a, c), emit(_aten.mul.Tensor, b, d))
        return real, emit(_aten.add.Tensor, emit(_aten.mul.Tensor, a, d), emit(_aten.mul.Tensor, b, c))

    def _parts_of_parameter(self, node: fx.Node) -> _Parts:
        value, origin = self.model.parameter(node).detach(), self.model.origin(node)
        real, imaginary = (
            self.model.add_parameter(f"{node.target}_{name}", part.float().contiguous(), before=node, origin=(name, origin))
            for name, part in (("real", value.real), ("imaginary", value.imag))
        )
        return real, imaginary
