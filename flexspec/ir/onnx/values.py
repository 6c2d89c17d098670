"""What a value of an ONNX graph is while it is imported: its contents or shapes at some trial sizes, and its node in the new graph.

A graph is imported by running it at a few batch sizes and lengths. What depends on sizes alone (shapes, positions, masks) is computed for
real; what depends on the tokens is a tensor without contents (device `meta`) that has a shape at each trial, and a node. A number that
differs between trials is a `Size`; it is recognised as an expression in batch and length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx


class Trial(NamedTuple):
    """A batch size and a length that the graph is run at."""

    batch: int
    length: int


@dataclass(frozen=True)
class Size:
    """An integer that depends on batch and length; `trials` is what it is at each trial."""

    trials: tuple[int, ...]


Int = int | Size


@dataclass(frozen=True)
class Call:
    """How a value came about: an operator and its arguments, which hold `Value`s and `Size`s."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Value:
    """One tensor of the graph.

    Attributes:
        trials: the tensor at each trial; of device `meta` if it depends on the tokens. A constant is the same object at all of them.
        call: what it was computed by; None for inputs, constants and shapes.
        node: its node in the new graph. A value that does not depend on the tokens has none until one that does needs it.
    """

    trials: tuple[Tensor, ...]
    call: Call | None = None
    node: fx.Node | None = None

    @property
    def is_token_free(self) -> bool:
        """Whether it depends on sizes alone."""
        return not self.trials[0].is_meta

    @property
    def is_constant(self) -> bool:
        """Whether it depends on nothing."""
        return self.is_token_free and all(trial is self.trials[0] for trial in self.trials)

    @property
    def rank(self) -> int:
        """Number of dims."""
        return self.trials[0].dim()

    @property
    def dtype(self) -> torch.dtype:
        """Element type; values that depend on the tokens have float32 for any float."""
        return self.trials[0].dtype

    @property
    def is_floating_point(self) -> bool:
        """Whether its elements are floats."""
        return self.dtype.is_floating_point

    @property
    def shape(self) -> list[Int]:
        """Its dims; those that depend on batch or length are `Size`s."""
        return [one_int(dims) for dims in zip(*(trial.shape for trial in self.trials), strict=True)]

    def dim(self, index: int) -> int:
        """A dim that is the same at all trials.

        Raises:
            ValueError: if it is not.
        """
        size = self.shape[index]
        if not isinstance(size, int):
            raise ValueError(f"dim {index} depends on batch or length")
        return size


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """The shape that shapes broadcast to.

    Raises:
        RuntimeError: if they do not.
    """
    total = torch.empty((), device="meta")
    for one in shapes:
        total = total + torch.empty(tuple(one), device="meta")
    return total.shape


def one_int(trials: Sequence[int]) -> Int:
    """An `int` if it is the same at all trials, otherwise a `Size`."""
    return int(trials[0]) if all(one == trials[0] for one in trials) else Size(tuple(int(one) for one in trials))


def at_trial(argument: Any, trial: int) -> Any:
    """An argument of a call with its `Value`s and `Size`s replaced by what they are at one trial."""
    if isinstance(argument, Value | Size):
        return argument.trials[trial]
    if isinstance(argument, list | tuple):
        return type(argument)(at_trial(one, trial) for one in argument)
    return argument


def values_in(argument: Any) -> list[Value]:
    """The `Value`s in an argument of a call."""
    if isinstance(argument, Value):
        return [argument]
    if isinstance(argument, list | tuple):
        return [value for one in argument for value in values_in(one)]
    return []


def has_size(argument: Any) -> bool:
    """Whether an argument of a call holds a `Size`."""
    return isinstance(argument, Size) or (isinstance(argument, list | tuple) and any(has_size(one) for one in argument))
