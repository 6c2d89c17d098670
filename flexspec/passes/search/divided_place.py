"""A place of the model on a group of devices: what each way to divide an operator needs, gives, and leaves the first device to do.

The first device has the most of everything that can't be divided evenly, so its share is what is timed.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from flexspec.errors import UsageError
from flexspec.ir.partition import PARTIAL, REPLICATED, Layout, Partitioning, Placing, shares
from flexspec.passes.search.records import BlockRecord, OperatorRecord
from flexspec.passes.search.work import Assignment, Move, Work


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to divide an operator; layouts are bits."""

    name: str
    needs: tuple[int, ...]
    gives: int
    first: Work
    weights: int
    kv_heads: int

    def work(self, is_fused: bool) -> Work:
        """The first device's; of a linear, as part of an earlier one or alone."""
        return replace(self.first, launches=0) if is_fused and self.first.kind == "linear" else self.first


class DividedPlace:
    """A place's values and operators on a group of some size; values are numbered, layouts are bits, sets of layouts are their sums.

    Args:
        block: the place.
        degree: devices of the group.
        units: numbers of parts that are on offer, 0 for what is not divided.
    """

    def __init__(self, block: BlockRecord, degree: int, units: Container[int]) -> None:
        self.block, self.degree = block, degree
        self.widths = [*block.inputs, *(one.out_columns for one in block.operators)]
        self.movable = [True] * len(block.inputs) + [one.is_tensor for one in block.operators]
        ways = [[way for way in operator.partitionings if way.units in units] for operator in block.operators]
        if degree == 1:
            ways = [some[:1] for some in ways]
        found = {layout for some in ways for way in some for layout in (*way.inputs, way.result)}
        self.layouts = [REPLICATED, PARTIAL, *sorted(found - {REPLICATED, PARTIAL})]
        self.options = [[self._option(operator, way) for way in some] for operator, some in zip(block.operators, ways, strict=True)]

    def assignment(self, names: Sequence[str]) -> Assignment:
        """A given way, not priced yet."""
        block, whole = self.block, self.bit(REPLICATED)
        if len(names) != len(block.operators):
            raise UsageError(f"partition[{block.name!r}] has {len(names)} names, but the place has {len(block.operators)} operators")
        have = dict.fromkeys(range(len(block.inputs)), whole)
        read: set[tuple[int, int]] = set()
        works: list[Work] = []
        moves: list[Move] = []
        weights = kv_heads = 0
        for operator, options, name in zip(block.operators, self.options, names, strict=True):
            option = next((one for one in options if one.name == name), None)
            steps = None if option is None else self.brought(operator.reads, option.needs, have)
            if option is None or steps is None:
                raise UsageError(f"partition[{block.name!r}]={name!r} of {operator.name} is not possible on {self.degree} devices")
            moves += steps
            source = (operator.reads[0], option.needs[0])
            works.append(option.work(source in read))
            if operator.kind == "linear":
                read.add(source)
            weights, kv_heads = weights + option.weights, max(kv_heads, option.kv_heads)
            have[len(have)] = option.gives
        moves += self.brought((len(have) - 1,), (whole,), have) or []
        return Assignment(
            names=tuple(names), degree=self.degree, works=tuple(works), moves=tuple(moves), weights=weights, kv_heads=kv_heads
        )

    def brought(self, values: Sequence[int], wanted: Sequence[int], have: dict[int, int]) -> list[Move] | None:
        """The moves after which values are there in wanted layouts too, which are added to `have`; None if that can't be."""
        moves: list[Move] = []
        for value, layout in zip(values, wanted, strict=True):
            if have[value] & layout:
                continue
            if self.layouts[1] == self._layout(layout) or not self.movable[value]:
                return None
            whole = self.bit(REPLICATED)
            if not have[value] & whole:
                moves.append(self._to_whole(value, self._layout(have[value])))
                have[value] |= whole
            if layout != whole:
                moves.append(Move(kind="repartition", columns=self._part(self.widths[value], self._layout(layout).units)))
                have[value] |= layout
        return moves

    def _to_whole(self, value: int, layout: Layout) -> Move:
        if layout.placing is Placing.PARTIAL:
            return Move(kind="reduce", columns=self.widths[value])
        return Move(kind="combine", columns=self._part(self.widths[value], layout.units))

    def bit(self, layout: Layout) -> int:
        """The bit of a layout."""
        return 1 << self.layouts.index(layout)

    def _layout(self, bit: int) -> Layout:
        return self.layouts[bit.bit_length() - 1]

    def _option(self, operator: OperatorRecord, way: Partitioning) -> Option:
        units = way.units

        def columns(width: int, layout: Layout) -> int:
            return self._part(width, layout.units) if layout.placing is Placing.SHARDED else width

        divided = way.result.placing is Placing.SHARDED
        weights = sum(
            size if dim is None or dim < 0 else self._part(size, units) for size, dim in zip(operator.weights, way.weights, strict=True)
        )
        work = Work(
            kind=operator.kind,
            in_columns=sum(columns(self.widths[value], layout) for value, layout in zip(operator.reads, way.inputs, strict=True)),
            out_columns=columns(operator.out_columns, way.result),
            heads=self._part(operator.heads, units) if divided else operator.heads,
            kv_heads=self._part(operator.kv_heads, units) if divided else operator.kv_heads,
            head_dim=operator.head_dim,
            window=operator.window,
            experts=operator.experts,
            top_k=operator.top_k,
            expert_weights=weights // operator.experts if operator.experts else 0,
        )
        return Option(
            name=way.name,
            needs=tuple(self.bit(layout) for layout in way.inputs),
            gives=self.bit(way.result),
            first=work,
            weights=weights,
            kv_heads=work.kv_heads,
        )

    def _part(self, width: int, units: int) -> int:
        return width // units * shares(units, self.degree)[0]


def all_units(block: BlockRecord, degree: int) -> set[int]:
    """Numbers of units that give every device something, and 0 for what is not divided."""
    offered = {way.units for operator in block.operators for way in operator.partitionings}
    return {units for units in offered if units == 0 or units >= degree > 1}


def useful_units(block: BlockRecord, degree: int) -> set[int]:
    """The same without those that divide as others do."""
    offered = all_units(block, degree)
    # Units that fall evenly on the devices are cut as any smaller number of them would be that does, too.
    even = {units for units in offered if units and units % degree == 0}
    return offered - {units for units in even if any(units % other == 0 and other < units for other in even)}
