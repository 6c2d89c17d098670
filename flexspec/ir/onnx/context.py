"""What an importer of one ONNX operator works with."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from onnx import NodeProto
from torch import Tensor, fx

import flexspec.ir.onnx.lazy_indexing
import flexspec.ir.onnx.lazy_operators
import flexspec.ir.onnx.lazy_reductions  # noqa: F401 - these fill the table
from flexspec.ir.graph import Source
from flexspec.ir.onnx.by_position import Found, with_positions
from flexspec.ir.onnx.emission import Emission
from flexspec.ir.onnx.lazy import Budget, lazily
from flexspec.ir.onnx.mask import Meaning
from flexspec.ir.onnx.node_reader import NodeReader
from flexspec.ir.onnx.run import run_at
from flexspec.ir.onnx.values import Call, Int, Size, Trial, Value, at_trial, has_size, one_int, values_in

_HELD_LENGTH = 64
"""At longer trials, what is too large to hold is lazy."""
_MOST_DIMS = 64
_ELEMENTS, _TIMES = 1 << 28, 64
"""Elements that may be computed: so many, and so many times as many as the weights have."""


class ImportContext(NodeReader):
    """Reads nodes, and computes values, which writes the new graph.

    Attributes:
        trials: the sizes that the graph is run at.
        budget: what may be computed: in proportion to the elements of the weights, which `elements` gives.
        embeddings: tables that are looked up by tokens.
        meanings: of masks, by their tensors' ids.
        emission: the new graph.
        positions: position ids, [batch, length].
    """

    def __init__(
        self,
        model: str,
        path: Path,
        opsets: Mapping[str, int],
        trials: Sequence[Trial],
        *,
        elements: int = 0,
        made: dict[tuple[str, ...], Tensor] | None = None,
    ) -> None:
        super().__init__(model, path, opsets)
        self.trials = tuple(trials)
        self.budget = Budget(_ELEMENTS + _TIMES * elements)
        self._made = {} if made is None else made
        self._four_bits: set[Source] = set()
        self._by_position: Found = {}
        self.embeddings: list[Value] = []
        self.meanings: dict[tuple[int, ...], tuple[Meaning, tuple[Value, ...]]] = {}
        self.emission = Emission(self.trials)
        self.positions = self.emission.position_ids

    @property
    def batch(self) -> Size:
        """The batch size."""
        return Size(tuple(trial.batch for trial in self.trials))

    @property
    def length(self) -> Size:
        """The length of the sequences."""
        return Size(tuple(trial.length for trial in self.trials))

    def add_tensor(self, name: str, tensor: Tensor, *, four_bits: bool) -> None:
        """Give a constant a name; `four_bits` if it is of a type of 4 bits, of which there is one to an element here."""
        self.values[name] = self.constant(tensor)
        self.emission.names[Source(tensor)] = name
        if four_bits:
            self._four_bits.add(Source(tensor))

    def has_four_bits(self, tensor: Tensor) -> bool:
        """Whether a constant is of a type of 4 bits."""
        return Source(tensor) in self._four_bits

    def constant(self, tensor: Tensor) -> Value:
        """A constant as a value."""
        return Value((tensor,) * len(self.trials))

    def embedding_like(self, weight: Value) -> Value:
        """The embedding that a constant weight is a copy of, as exporters make of a tied one; the weight itself if it is none's."""
        given = weight.trials[0]
        for table in self.embeddings:
            own = table.trials[0]
            if own.shape == given.shape and own.dtype == given.dtype and torch.equal(own[0], given[0]) and torch.equal(own, given):
                return table
        return weight

    def once(self, node: NodeProto, made: Callable[[], Tensor]) -> Tensor:
        """A constant that takes long to make, which contexts that share their `made` make once."""
        key = (*self.branches, node.output[0])
        if key not in self._made:
            self._made[key] = made()
        return self._made[key]

    def known(self, node: NodeProto, value: Value) -> Tensor:
        """The contents of a value that must be a constant.

        Raises:
            UsageError: if it depends on anything.
        """
        first = value.trials[0]
        if not value.is_token_free or any(not torch.equal(one, first) for one in value.trials[1:]):
            raise self.refusal(node, "an input that must be a constant is computed")
        return first

    def number(self, value: Value) -> int | float | bool | None:
        """The one number that a constant of one element and no dims holds, whatever it was computed from; None for anything else."""
        trials = value.trials
        if value.is_token_free and all(one.dim() == 0 for one in trials):
            numbers = {one.item() for one in trials}
            if len(numbers) == 1 or all(number != number for number in numbers):
                return trials[0].item()
        return None

    def ints(self, node: NodeProto, value: Value) -> list[Int]:
        """The numbers in a tensor of integers, [n] or [], such as a shape; those that depend on batch or length are `Size`s.

        Raises:
            UsageError: if it depends on the tokens, or has another number of elements at other sizes.
        """
        if not value.is_token_free or len({one.numel() for one in value.trials}) > 1:
            raise self.refusal(node, "a shape or an index that it needs depends on the tokens")
        if value.trials[0].numel() > _MOST_DIMS or value.is_floating_point:
            raise self.refusal(node, f"a shape or an index that it needs is {value.dtype} {list(value.trials[0].shape)}")
        return [one_int(numbers) for numbers in zip(*(one.reshape(-1).tolist() for one in value.trials), strict=True)]

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """The result of an operator with one tensor result, of values, numbers, `Size`s and lists of them.

        Raises:
            RuntimeError, IndexError, TypeError, ValueError: as the operator does where shapes do not fit.
        """
        values = values_in((args, tuple(kwargs.values())))
        if all(value.is_constant for value in values) and not has_size(args) and values:
            return self.constant(run_at(0, target, args, kwargs))
        trials = []
        for trial in range(len(self.trials)):
            with self.holding(trial) if all(value.is_token_free for value in values) else nullcontext():
                trials.append(run_at(trial, target, args, kwargs))
        result = Value(tuple(trials), Call(target, args, kwargs))
        if not result.is_token_free:
            is_pointwise = torch.Tag.pointwise in getattr(target, "tags", ())
            self.emission.emit(result, with_positions(self, args, self._by_position) if is_pointwise else args)
        return result

    def derive(self, node: NodeProto, function: Callable[..., Tensor], *values: Value) -> Value:
        """The result of any function of values that depend on sizes alone; it can become part of the new graph only as a mask or position.

        Raises:
            UsageError: if one of the values depends on the tokens.
        """
        if not all(value.is_token_free for value in values):
            raise self.refusal(node, "it is supported only for what does not depend on the tokens, such as masks and positions")
        if all(value.is_constant for value in values):
            return self.constant(function(*(value.trials[0] for value in values)))
        return self.each(lambda trial: function(*(at_trial(value, trial) for value in values)))

    def each(self, made: Callable[[int], Tensor]) -> Value:
        """A value that depends on sizes alone, from what makes it at each trial, by number."""
        results = []
        for trial in range(len(self.trials)):
            with self.holding(trial):
                results.append(made(trial))
        return Value(tuple(results))

    def holding(self, trial: int) -> AbstractContextManager[None]:
        """Within it, what a trial, by number, makes may be lazy."""
        return lazily(self.budget) if self.trials[trial].length > _HELD_LENGTH else nullcontext()

    def node_of(self, value: Value) -> fx.Node:
        """A value's node in the new graph."""
        return self.emission.node_of(value)
