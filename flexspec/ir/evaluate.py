"""Parts of a captured graph run on small concrete inputs, to find out what they mean."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from flexspec.ir.graph import ModelGraph, expression, fake, is_tensor

_aten = torch.ops.aten
# They read the shape of their first operand only.
_SHAPE_ONLY = {
    _aten.sym_size.int,
    _aten.sym_numel.default,
    _aten.ones_like.default,
    _aten.zeros_like.default,
    _aten.full_like.default,
    _aten.empty_like.default,
    _aten.new_ones.default,
    _aten.new_zeros.default,
    _aten.new_full.default,
    _aten.new_empty.default,
}
# They take numbers besides point-wise operators.
_OF_NUMBERS = {
    _aten.tril.default,
    _aten.triu.default,
    _aten.full.default,
    _aten.full_like.default,
    _aten.new_full.default,
    _aten.scalar_tensor.default,
    _aten.where.ScalarOther,
    _aten.where.ScalarSelf,
    _aten.where.Scalar,
}
SMALL = 8
"""Elements of constants that are taken for numbers."""


class Evaluation:
    """Values of a captured graph's nodes at one batch size and length, positions counting from 0 and every token id 0.

    Each is computed once. Sizes follow from the shapes that tracing found, so nothing is computed for a size alone. `constants`
    replaces numbers, whatever their sign, that operators take (`takes_numbers`) or small constants hold.
    """

    def __init__(self, model: ModelGraph, *, batch: int, length: int, constants: Mapping[float, float] | None = None) -> None:
        self.model, self.batch, self.length = model, batch, length
        self._constants = constants or {}
        symbols = [expression(dim) for dim in fake(model.placeholder("token_ids")).shape]
        self._sizes = dict(zip(symbols, (batch, length), strict=True))
        self._values: dict[fx.Node, Any] = {
            model.placeholder("token_ids"): torch.zeros((batch, length), dtype=torch.int64),
            model.placeholder("position_ids"): torch.arange(length).repeat(batch, 1),
        }

    def shape(self, node: Any) -> list[int]:
        """The concrete shape of a tensor-valued node."""
        return [self.size(dim) for dim in fake(node).shape]

    def size(self, dim: Any) -> int:
        """A dim, or any integer computed from dims, as it is here."""
        return int(dim.node.expr.subs(self._sizes)) if isinstance(dim, torch.SymInt) else int(dim)

    def value(self, node: fx.Node, given: Mapping[fx.Node, Tensor] | None = None) -> Any:
        """A node's value.

        Args:
            node: of the graph.
            given: values to take for some nodes; what depends on them is not kept.
        """
        own: dict[fx.Node, Any] = dict(given or {})
        for one in self._needed(node, own):
            result = self._compute(one, own)
            (own if any(arg in own for arg in one.all_input_nodes) else self._values)[one] = result
        return own[node] if node in own else self._values[node]

    def _needed(self, node: fx.Node, own: Mapping[fx.Node, Any]) -> list[fx.Node]:
        """What has to be computed, in graph order."""
        needed: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one in needed or one in own or one in self._values:
                continue
            needed.add(one)
            if not isinstance(one.meta.get("val"), torch.SymInt):
                waiting += [arg for arg in one.all_input_nodes if not _is_shape_alone(arg, one)]
        return [one for one in self.model.graph.nodes if one in needed]

    def _compute(self, node: fx.Node, own: Mapping[fx.Node, Any]) -> Any:
        if isinstance(node.meta.get("val"), torch.SymInt):
            return self.size(node.meta["val"])
        if node.op == "get_attr":
            return self._with_replaced(self.model.parameter(node))
        assert node.op == "call_function" and callable(node.target), node
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: self._given(arg, own))
        if self._constants and takes_numbers(node):
            args, kwargs = tuple(map(self._replaced, args)), {name: self._replaced(arg) for name, arg in kwargs.items()}
        return runnable(node.target)(*args, **kwargs)

    def _given(self, arg: fx.Node, own: Mapping[fx.Node, Any]) -> Any:
        for values in (own, self._values):
            if arg in values:
                return values[arg]
        return torch.zeros((), dtype=fake(arg).dtype).expand(self.shape(arg))  # its shape alone is read

    def _with_replaced(self, constant: Tensor) -> Tensor:
        if not self._constants or constant.numel() > SMALL or constant.dtype == torch.bool:
            return constant
        return torch.tensor([self._number(one) for one in constant.reshape(-1).tolist()], dtype=constant.dtype).reshape(constant.shape)

    def _replaced(self, given: Any) -> Any:
        return self._number(given) if type(given) in (int, float) else given

    def _number(self, number: float) -> float:
        size = self._constants.get(abs(number), abs(number))
        return size if number >= 0 else -size


def runnable(target: Any) -> Any:
    """An operator of the graph, or `reshape` for a view: what it is given may be laid out in another way than when it was traced."""
    return _aten.reshape.default if target in (_aten.view.default, _aten._unsafe_view.default) else target


def _is_shape_alone(arg: fx.Node, reader: fx.Node) -> bool:
    return reader.target in _SHAPE_ONLY and arg is reader.args[0] and is_tensor(arg)


def takes_numbers(node: fx.Node) -> bool:
    """Whether an operator's numbers are values, and no sizes or places of dims: point-wise ones, triangles, constants."""
    return node.op == "call_function" and (node.target in _OF_NUMBERS or torch.Tag.pointwise in getattr(node.target, "tags", ()))


def computed_from(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes whose values, and not only whose shapes, any of `nodes` is computed from, these included."""
    reached: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached and not isinstance(node.meta.get("val"), torch.SymInt):
            reached.add(node)
            waiting += node.all_input_nodes[1:] if node.target in _SHAPE_ONLY else node.all_input_nodes
    return reached


def depends_on_content(model: ModelGraph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes whose value depends on what `sources` hold, and not only on their shapes; these included."""
    reached = set(sources)
    for node in model.graph.nodes:
        if node.target in _SHAPE_ONLY or not (is_tensor(node) or isinstance(node.meta.get("val"), list | tuple)):
            continue
        if any(arg in reached for arg in node.all_input_nodes):
            reached.add(node)
    return reached
