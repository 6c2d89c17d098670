"""A native program as a straight list of instructions on named values.

A value is a float32 matrix with one row a token. A view (slice, reshape) is a column range of a value and costs nothing.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import fx

COLLECTIVES = frozenset({"combine", "reduce", "replicate"})
"""Kinds of instructions at which ranks talk to each other."""


class UnsupportedOperator(Exception):
    """The native target has no instruction for an operator."""


@dataclass(frozen=True)
class Columns:
    """Columns start … start + cols - 1 of value `value`; `heads` > 1 if the graph sees them as [tokens, heads, dim]."""

    value: int
    start: int
    cols: int
    heads: int = 1


@dataclass
class Instruction:
    """One native operation.

    Attributes:
        kind: the operation's name in `NativeProgram`.
        node: where it comes from.
        inputs: values read, by argument name.
        out: the columns written, of most values all; those of a concatenation have a writer a part.
        options: everything else; parameters as `get_attr` nodes.
        absorbed: operators that fusion moved into this one, and where in it they run.
    """

    kind: str
    node: fx.Node
    inputs: dict[str, Columns]
    out: Columns
    options: dict[str, Any] = field(default_factory=dict)
    absorbed: dict[str, str] = field(default_factory=dict)


@dataclass
class InstructionList:
    """Instructions in order, the values filled from positions and features before each pass, and what they compute.

    Attributes:
        position_values: value → its columns, in the order of `position_graph`'s results.
        features: where a pass's features go, if the model takes any.
        hidden_states: in the order in which they were asked for.
        after_gather: values that have one row an output row.
    """

    instructions: list[Instruction]
    position_values: list[Columns]
    features: Columns | None
    logits: Columns
    hidden_states: list[Columns]
    after_gather: set[int]
