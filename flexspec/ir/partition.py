"""How an operator can be divided over the devices of a tensor-parallel group: the declarations that the strategy search reads.

A value with one row a token lies on the devices of a group in one of three layouts. Moving it from one to another is a parallel
operator: `repartition` (each device keeps its columns), `combine` (all-gather), `reduce` (all-reduce).
"""

from dataclasses import dataclass
from enum import StrEnum


class Placing(StrEnum):
    """Where a value is.

    REPLICATED: whole on every device. SHARDED: its columns (or heads) divided over the devices. PARTIAL: every device has a
    summand of the same shape.
    """

    REPLICATED = "replicated"
    SHARDED = "sharded"
    PARTIAL = "partial"


@dataclass(frozen=True, order=True)
class Layout:
    """A value's placing; of a sharded one, into how many equal units its columns fall that stay whole, for example KV groups."""

    placing: Placing
    units: int = 0

    def __post_init__(self) -> None:
        assert (self.units > 0) == (self.placing is Placing.SHARDED), self


REPLICATED = Layout(Placing.REPLICATED)
PARTIAL = Layout(Placing.PARTIAL)


def sharded(units: int) -> Layout:
    """Columns divided by units."""
    return Layout(Placing.SHARDED, units)


@dataclass(frozen=True, kw_only=True)
class Partitioning:
    """One way to divide an operator.

    Attributes:
        name: for strategies, such as `replicated`, `columns:3`, `rows:3`, `heads:3`; unique among an operator's.
        inputs: the layout that each tensor argument has to have, parameters excluded, in the order of the arguments.
        weights: for each parameter argument, the dimension that is divided by the units of the sharded inputs or result; None for
            a whole one. A parameter that must count once in a partial sum, such as a bias, is -1: the first device has it alone.
        result: the layout that comes out.
        inside: into how many units weights fall that are divided where neither what comes in is nor what comes out, as those between
            the two layers of an MLP are.
    """

    name: str
    inputs: tuple[Layout, ...]
    weights: tuple[int | None, ...]
    result: Layout
    inside: int = 0

    @property
    def units(self) -> int:
        """Into how many units it divides; 0 if it does not."""
        return next((layout.units for layout in (self.result, *self.inputs) if layout.units), self.inside)


def shares(units: int, degree: int) -> tuple[int, ...]:
    """Units of each device: as even as can be, the first devices having the odd ones."""
    least, more = divmod(units, degree)
    return tuple(least + (rank < more) for rank in range(degree))
