"""What a way to divide a place of the model comes to: one device's work, and what moves between devices."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from flexspec.passes.search.records import RecordKind

MoveKind = Literal["reduce", "combine", "repartition"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the first device does of an operator.

    Attributes:
        kind: of the operator.
        in_columns: elements a token that it reads.
        out_columns: elements a token of its result.
        heads: query heads of an attention.
        kv_heads: its KV heads.
        head_dim: elements of a head.
        window: most keys that a token sees; None for all.
        experts: of a mixture of experts, how many there are.
        top_k: those that a token goes to.
        expert_weights: elements of the parameters of one of them.
        launches: 0 for a linear that becomes part of another one, which reads the same value.
    """

    kind: RecordKind
    in_columns: int
    out_columns: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None
    experts: int = 0
    top_k: int = 0
    expert_weights: int = 0
    launches: int = 1


@dataclass(frozen=True, kw_only=True)
class Move:
    """A parallel operator; `columns` are the elements a token that the first device gives, or keeps of a `repartition`."""

    kind: MoveKind
    columns: int


class Price(Protocol):
    """What things take in a pass of some size, in seconds."""

    def operator(self, work: Work) -> float:
        """One device's work."""

    def move(self, move: Move) -> float:
        """A parallel operator on the devices of a group."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A way to divide a place.

    Attributes:
        names: of the partitionings, in the order of the operators.
        degree: devices.
        works: what the first device does.
        moves: parallel operators in between, and after them until the result is whole on every device.
        weights: elements of the parameters that the fullest device has.
        kv_heads: in the KV cache of the fullest device; 0 of a place without attention.
        operator_seconds: of all works.
        move_seconds: of all moves.
    """

    names: tuple[str, ...]
    degree: int
    works: tuple[Work, ...]
    moves: tuple[Move, ...]
    weights: int
    kv_heads: int
    operator_seconds: float = 0.0
    move_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the place."""
        return self.operator_seconds + self.move_seconds

    @property
    def is_divided(self) -> bool:
        """Whether any operator is."""
        return any(name != "replicated" for name in self.names)

    def priced(self, price: Price) -> "Assignment":
        """The same with what it takes in another pass."""
        return replace(self, operator_seconds=sum(map(price.operator, self.works)), move_seconds=sum(map(price.move, self.moves)))
