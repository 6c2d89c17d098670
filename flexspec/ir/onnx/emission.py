"""The new graph while an ONNX graph is imported: nodes of what depends on the tokens, and of what these need."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from flexspec.ir.graph import Source
from flexspec.ir.onnx.positions import position_offset
from flexspec.ir.onnx.values import Size, Trial, Value

_aten = torch.ops.aten
_SHAPED = {_aten.view.default, _aten.reshape.default, _aten.expand.default}


def unrecognised(index: int) -> Tensor:
    """Stands in the new graph for a value that depends on sizes, such as a mask, and must go before the graph can run."""
    raise AssertionError(f"value {index} was not recognised")


def changes_with_length(index: int) -> Tensor:
    """Stands in the new graph for a value of a position that is another in longer texts, likewise."""
    raise AssertionError(f"value {index} changes with the length")


class Emission:
    """Writes the new graph, `(input_ids [batch, length], position_ids [batch, length])` to what the caller makes its output.

    Attributes:
        graph: the new graph. The nodes of tensors have their `Value` in `meta["value"]`.
        root: holds the constants.
        token_ids: the input of tokens.
        position_ids: the input of positions, whose trials count from 0.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = tuple(trials)
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.names: dict[Source, str] = {}
        self._attributes: dict[Source, fx.Node] = {}
        self.token_ids = self._input("input_ids", tuple(torch.empty(trial, dtype=torch.int64, device="meta") for trial in self.trials))
        ranges = tuple(torch.arange(trial.length).repeat(trial.batch, 1) for trial in self.trials)
        self.position_ids = self._input("position_ids", ranges)
        assert self.token_ids.node is not None
        self._sizes = {
            "batch": self.graph.call_function(_aten.sym_size.int, (self.token_ids.node, 0)),
            "length": self.graph.call_function(_aten.sym_size.int, (self.token_ids.node, 1)),
        }
        self._number_refused = 0

    def _input(self, name: str, trials: tuple[Tensor, ...]) -> Value:
        value = Value(trials, node=self.graph.placeholder(name))
        self._describe(value)
        return value

    def emit(self, value: Value, given: Sequence[Any] | None = None) -> None:
        """Write the call that computes a value, and what it needs; of the `given` arguments rather than the call's own."""
        call = value.call
        assert call is not None
        exact = value.is_token_free
        args = self._written(call.args if given is None else tuple(given), exact)
        if call.target in _SHAPED and _is_batched(args[0]) and args[1][0] == 1:
            args = (args[0], [self._sizes["batch"], *args[1][1:]])
        kwargs = {name: self._written(one, exact) for name, one in call.kwargs.items()}
        value.node = self.graph.call_function(call.target, args, kwargs)
        self._describe(value)
        sources = value.node.all_input_nodes
        value.node.meta["batched"] = any(_is_batched(one) for one in sources) and all(one.shape[:1] == (1,) for one in value.trials)

    def node_of(self, value: Value, *, for_positions: bool = False) -> fx.Node:
        """The node of a value; one that depends on sizes alone is written now, in terms of the position input where it can be.

        A constant that something is computed `for_positions` from is a buffer that is not saved, which keeps its precision.
        """
        if value.node is None:
            if value.is_constant:
                value.node = self._constant(value.trials[0], exact=for_positions)
            else:
                self._write_token_free(value)
            self._describe(value)
        assert value.node is not None
        return value.node

    def _write_token_free(self, value: Value) -> None:
        first = value.trials[0]
        offset = position_offset(value, self.trials)
        if offset is not None:
            value.node = self._positions(value, *offset)
        elif all(torch.equal(one, first) for one in value.trials):
            value.node = self._constant(first)
        elif (row := _one_row(value)) is not None:
            value.node = self._constant(row)
        elif (uniform := _uniform(value)) is not None:
            value.node = self._constant(uniform)
        elif all(one.shape == first.shape for one in value.trials):
            value.node = self._refused(changes_with_length)
        elif value.call is None or sum(isinstance(size, Size) for size in value.shape[1:]) != 1:
            value.node = self._refused(unrecognised)
        elif not _is_of_position(value, self.trials):
            value.node = self._refused(changes_with_length)
        else:
            self.emit(value)

    def _refused(self, stand_in: Callable[[int], Tensor]) -> fx.Node:
        self._number_refused += 1
        return self.graph.call_function(stand_in, (self._number_refused,))

    def _positions(self, value: Value, dim: int, offset: int) -> fx.Node:
        """Position ids plus an offset, with the dims of `value`; its batch is there whether `value` has it or not."""
        assert self.position_ids.node is not None
        node = self.position_ids.node
        if offset:
            node = self.graph.call_function(_aten.add.Tensor, (node, offset))
        if value.is_floating_point:
            node = self.graph.call_function(_aten.to.dtype, (node, torch.float32))
        if value.rank > 2:
            shape: list[Any] = [1] * value.rank
            shape[0], shape[dim] = self._sizes["batch"], self._sizes["length"]
            node = self.graph.call_function(_aten.view.default, (node, shape))
        node.meta["batched"] = all(one.shape[0] == 1 for one in value.trials)
        return node

    def _constant(self, tensor: Tensor, *, exact: bool = False) -> fx.Node:
        source = Source(tensor)
        if source not in self._attributes:
            name = "w_" + re.sub(r"\W", "_", self.names.get(source) or f"constant_{len(self._attributes)}")
            while hasattr(self.root, name):
                name += "_"
            if tensor.is_floating_point() and not exact:
                self.root.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
            else:
                self.root.register_buffer(name, tensor, persistent=not exact)
            self._attributes[source] = self.graph.get_attr(name)
        return self._attributes[source]

    def _written(self, argument: Any, exact: bool) -> Any:
        if isinstance(argument, Value):
            return self.node_of(argument, for_positions=exact)
        if isinstance(argument, Size):
            return self.size(argument)
        if isinstance(argument, list | tuple):
            return type(argument)(self._written(one, exact) for one in argument)
        return argument

    def size(self, size: Size) -> Any:
        """A node that computes factor * (batch, length or both) + constant.

        Raises:
            ValueError: if the integer is no such expression.
        """
        units = {
            "length": [trial.length for trial in self.trials],
            "batch": [trial.batch for trial in self.trials],
            "both": [trial.batch * trial.length for trial in self.trials],
        }
        found = []
        for name, unit in units.items():
            factor, rest = divmod(size.trials[1] - size.trials[0], unit[1] - unit[0])
            constant = size.trials[0] - factor * unit[0]
            if rest == 0 and all(factor * one + constant == given for one, given in zip(unit, size.trials, strict=True)):
                found.append((abs(constant), name, factor, constant))
        if not found:
            raise ValueError(f"an integer that is {list(size.trials)} at {[tuple(trial) for trial in self.trials]} is no known size")
        _, name, factor, constant = min(found)
        node: Any = self._sizes.get(name) or self.graph.call_function(operator.mul, (self._sizes["batch"], self._sizes["length"]))
        if factor != 1:
            node = self.graph.call_function(operator.mul, (node, factor))
        return node if constant == 0 else self.graph.call_function(operator.add, (node, constant))

    def _describe(self, value: Value) -> None:
        assert value.node is not None
        value.node.meta.setdefault("value", value)


def _is_batched(node: Any) -> bool:
    """Whether the node has a batch where the value that it stands for has size 1."""
    return isinstance(node, fx.Node) and bool(node.meta.get("batched"))


def _one_row(value: Value) -> Tensor | None:
    """If it is one row repeated for the batch, and the row is the same whatever the sizes, that row with a batch of 1."""
    first = value.trials[0]
    if not first.dim() or any(one.shape[0] == 0 or one.shape[1:] != first.shape[1:] for one in value.trials):
        return None
    return first[:1].clone() if all(bool((one == first[:1]).all()) for one in value.trials) else None


def _uniform(value: Value) -> Tensor | None:
    """If all elements are the same number whatever the sizes, that number with the value's dims, all 1."""
    if any(one.numel() == 0 for one in value.trials):
        return None
    number = value.trials[0].reshape(-1)[0]
    if all(bool((one == number).all()) for one in value.trials):
        return number.reshape([1] * value.rank).clone()
    return None


def _is_of_position(value: Value, trials: Sequence[Trial]) -> bool:
    """Whether what a value holds for a position is the same in longer texts and in all sequences of a batch."""
    dim = next(dim for dim, size in enumerate(value.shape) if dim and isinstance(size, Size))
    shortest = min(range(len(trials)), key=lambda index: trials[index].length)
    length = trials[shortest].length
    row = value.trials[shortest][:1].double()
    if any(one.shape[dim] != trial.length for one, trial in zip(value.trials, trials, strict=True)):
        return False
    return all(
        torch.allclose(one.narrow(dim, 0, length).double(), row.expand(len(one), *row.shape[1:]), rtol=1e-5, atol=1e-6)
        for one in value.trials
    )
