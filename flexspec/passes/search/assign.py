"""How the operators of a place are divided over the devices of a tensor-parallel group: the best ways, exactly.

Dynamic programming over the operators in graph order. What comes later depends on what came before by the layouts alone in which values
that are still needed are there, so of all ways to the same layouts only those are kept that no other one beats in time, weights and KV
heads at once. The first device has the most of everything that can't be divided evenly, so its share is what is timed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from flexspec.errors import UsageError
from flexspec.ir.partition import PARTIAL, REPLICATED, Layout, Partitioning, Placing, shares
from flexspec.passes.search.records import BlockRecord, OperatorRecord, RecordKind

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
        launches: 0 for a linear that becomes part of another one, which reads the same value.
    """

    kind: RecordKind
    in_columns: int
    out_columns: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None
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


def assign_block(block: BlockRecord, degree: int, price: Price) -> list[Assignment]:
    """All ways to divide a place that no other way beats in seconds, weights and KV heads at once, the fastest first.

    Args:
        block: the place.
        degree: devices of the group.
        price: what things take.

    Raises:
        UsageError: if no operator can be divided by so many devices.
    """
    reason = why_not(block, degree)
    if reason is not None:
        raise UsageError(reason)
    return _Search(_Divisions(block, degree), price).run()


def assignment(block: BlockRecord, names: Sequence[str], degree: int) -> Assignment:
    """A given way to divide a place, not priced yet.

    Raises:
        UsageError: if the place can't be divided so.
    """
    divisions = _Divisions(block, degree)
    if len(names) != len(block.operators):
        raise UsageError(f"partition[{block.name!r}] has {len(names)} names, but the place has {len(block.operators)} operators")
    have = [_bit(divisions.layouts, REPLICATED)] * len(block.inputs)
    read: set[tuple[int, int]] = set()
    works, moves, weights, kv_heads = list[Work](), list[Move](), 0, 0
    for operator, options, name in zip(block.operators, divisions.options, names, strict=True):
        option = next((one for one in options if one.name == name), None)
        steps = None if option is None else divisions.brought(operator.reads, option.needs, have)
        if option is None or steps is None:
            raise UsageError(f"partition[{block.name!r}]={name!r} of {operator.name} is not possible on {degree} devices")
        moves += steps
        works.append(option.work(operator.reads and (operator.reads[0], option.needs[0]) in read))
        if operator.kind == "linear":
            read.add((operator.reads[0], option.needs[0]))
        weights, kv_heads = weights + option.weights, max(kv_heads, option.kv_heads)
        have.append(option.gives)
    whole = divisions.brought((len(have) - 1,), (_bit(divisions.layouts, REPLICATED),), have)
    assert whole is not None
    return Assignment(
        names=tuple(names), degree=degree, works=tuple(works), moves=(*moves, *whole), weights=weights, kv_heads=kv_heads
    )


def most_devices(block: BlockRecord) -> int:
    """The largest group that any operator can be divided over."""
    return max((_units(way) for operator in block.operators for way in operator.partitionings), default=1) or 1


def why_not(block: BlockRecord, degree: int) -> str | None:
    """Why a place can't be divided over so many devices; None if it can."""
    most = most_devices(block)
    if degree <= max(most, 1):
        return None
    return f"tp={degree} is not allowed: no operator of {block.name} falls into more than {most} parts; give tp from 1 to {most}"


def kept_whole(block: BlockRecord, degree: int) -> str | None:
    """What is to be said of a place whose attention can't be divided over so many devices; None if it can, or there is none."""
    attention = block.attention
    if attention is None:
        return None
    most = max(map(_units, attention.partitionings))
    if degree <= most:
        return None
    return (
        f"tp={degree}: the {attention.heads} query heads of {block.name} share {attention.kv_heads} KV heads, so attention and its KV cache "
        f"are whole on every device; up to tp={most} they are divided"
    )


@dataclass(frozen=True, kw_only=True)
class _Option:
    """One way to divide an operator; layouts are bits."""

    name: str
    needs: tuple[int, ...]
    gives: int
    first: Work
    weights: int
    kv_heads: int

    def work(self, is_fused: object) -> Work:
        """The first device's; of a linear, as part of an earlier one or alone."""
        return replace(self.first, launches=0) if is_fused and self.first.kind == "linear" else self.first


class _Divisions:
    """A place's values and operators on a group of some size. Values are numbered, layouts are bits, sets of layouts are their sums."""

    def __init__(self, block: BlockRecord, degree: int) -> None:
        self.block, self.degree = block, degree
        self.widths = [*block.inputs, *(one.out_columns for one in block.operators)]
        self.movable = [True] * len(block.inputs) + [one.is_tensor for one in block.operators]
        ways = [self._ways(operator) for operator in block.operators]
        found = {layout for some in ways for way in some for layout in (*way.inputs, way.result)}
        self.layouts = [REPLICATED, PARTIAL, *sorted(found - {REPLICATED, PARTIAL})]
        self.options = [[self._option(operator, way) for way in some] for operator, some in zip(block.operators, ways, strict=True)]

    def brought(self, values: Sequence[int], wanted: Sequence[int], have: list[int]) -> list[Move] | None:
        """The moves after which values are there in wanted layouts too, which are added to `have`; None if that can't be."""
        moves: list[Move] = []
        for value, layout in zip(values, wanted, strict=True):
            if have[value] & layout:
                continue
            if self.layouts[1] == self._layout(layout) or not self.movable[value]:
                return None
            whole = _bit(self.layouts, REPLICATED)
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

    def _layout(self, bit: int) -> Layout:
        return self.layouts[bit.bit_length() - 1]

    def _ways(self, operator: OperatorRecord) -> list[Partitioning]:
        """Those that give every device something, without those that are the same as others."""
        if self.degree == 1:
            return [way for way in operator.partitionings if way.result == REPLICATED and not _units(way)][:1]
        offered = {_units(way) for one in self.block.operators for way in one.partitionings} - {0}
        # Units that fall evenly on the devices are cut as any smaller number of them would be that does, too.
        even = {units for units in offered if units % self.degree == 0}
        needless = {units for units in even if any(units % other == 0 and other < units for other in even)}
        return [way for way in operator.partitionings if not _units(way) or (_units(way) >= self.degree and _units(way) not in needless)]

    def _option(self, operator: OperatorRecord, way: Partitioning) -> _Option:
        units = _units(way)

        def columns(width: int, layout: Layout) -> int:
            return self._part(width, layout.units) if layout.placing is Placing.SHARDED else width

        divided = way.result.placing is Placing.SHARDED
        work = Work(
            kind=operator.kind,
            in_columns=sum(columns(self.widths[value], layout) for value, layout in zip(operator.reads, way.inputs, strict=True)),
            out_columns=columns(operator.out_columns, way.result),
            heads=self._part(operator.heads, units) if divided else operator.heads,
            kv_heads=self._part(operator.kv_heads, units) if divided else operator.kv_heads,
            head_dim=operator.head_dim,
            window=operator.window,
        )
        return _Option(
            name=way.name,
            needs=tuple(_bit(self.layouts, layout) for layout in way.inputs),
            gives=_bit(self.layouts, way.result),
            first=work,
            weights=sum(
                size if dim is None or dim < 0 else self._part(size, units)
                for size, dim in zip(operator.weights, way.weights, strict=True)
            ),
            kv_heads=work.kv_heads,
        )

    def _part(self, width: int, units: int) -> int:
        return width // units * shares(units, self.degree)[0]


@dataclass(frozen=True, slots=True)
class _Way:
    """A way through the operators so far, and the one it goes on from."""

    seconds: float
    weights: int
    kv_heads: int
    names: tuple[str, ...]


State = tuple[int, ...]
"""For each value that is still needed, the layouts it is there in, and above them those that a linear has read it in."""


class _Search:
    def __init__(self, divisions: _Divisions, price: Price) -> None:
        self.divisions, self.price = divisions, price
        self.shift = len(divisions.layouts)
        self.prices: dict[Work | Move, float] = {}

    def run(self) -> list[Assignment]:
        block, divisions = self.divisions.block, self.divisions
        whole = _bit(divisions.layouts, REPLICATED)
        live = list(range(len(block.inputs)))
        ways: dict[State, list[_Way]] = {(whole,) * len(live): [_Way(0.0, 0, 0, ())]}
        for place in range(len(block.operators)):
            kept = self._needed_after(place)
            found: dict[State, list[_Way]] = {}
            steps: dict[tuple[int, ...], list[tuple[State, float, _Option]]] = {}
            reads = [live.index(value) for value in dict.fromkeys(block.operators[place].reads)]
            remains = [live.index(value) for value in kept if value in live]
            for state, before in ways.items():
                key = tuple(state[one] for one in reads)
                if key not in steps:
                    steps[key] = list(self._steps(place, dict(zip(dict.fromkeys(block.operators[place].reads), key, strict=True))))
                for after, seconds, option in steps[key]:
                    changed = list(state)
                    for one, value in zip(reads, after, strict=False):
                        changed[one] = value
                    reached = (*(changed[one] for one in remains), option.gives)
                    _merge(found.setdefault(reached, []), before, seconds, option)
            ways, live = found, [*(value for value in kept if value in live), len(block.inputs) + place]
        return self._results(ways)

    def _needed_after(self, place: int) -> list[int]:
        """Values from before that later operators read."""
        block = self.divisions.block
        later = {value for operator in block.operators[place + 1 :] for value in operator.reads}
        return [value for value in range(len(block.inputs) + place) if value in later]

    def _steps(self, place: int, states: dict[int, int]) -> Iterator[tuple[State, float, _Option]]:
        """What can be done at an operator, the values that it reads being in these states: their states after it, and the seconds."""
        operator, divisions = self.divisions.block.operators[place], self.divisions
        mask = (1 << self.shift) - 1
        for option in divisions.options[place]:
            have = [0] * len(divisions.widths)
            for value, state in states.items():
                have[value] = state & mask
            moves = divisions.brought(operator.reads, option.needs, have)
            if moves is None:
                continue
            after = {value: have[value] | state & ~mask for value, state in states.items()}
            is_fused = False
            if operator.kind == "linear":
                source, flag = operator.reads[0], option.needs[0] << self.shift
                is_fused = bool(after[source] & flag)
                after[source] |= flag
            seconds = self._seconds(option.work(is_fused)) + sum(map(self._seconds, moves))
            yield tuple(after.values()), seconds, option

    def _seconds(self, what: Work | Move) -> float:
        if what not in self.prices:
            self.prices[what] = self.price.operator(what) if isinstance(what, Work) else self.price.move(what)
        return self.prices[what]

    def _results(self, ways: dict[State, list[_Way]]) -> list[Assignment]:
        block, degree = self.divisions.block, self.divisions.degree
        names = [way.names for some in ways.values() for way in some]
        results = [assignment(block, one, degree).priced(self.price) for one in names]
        results.sort(key=lambda one: (one.seconds, one.weights, one.kv_heads, len(one.moves)))
        front: list[Assignment] = []
        for one in results:
            if not any(other.weights <= one.weights and other.kv_heads <= one.kv_heads for other in front):
                front.append(one)
        return front


def _merge(kept: list[_Way], before: Sequence[_Way], seconds: float, option: _Option) -> None:
    """Add ways that go on by an option to those to the same layouts, and drop what is no better than another in anything."""
    for way in before:
        total, weights = way.seconds + seconds, way.weights + option.weights
        kv_heads = max(way.kv_heads, option.kv_heads)
        if any(one.seconds <= total and one.weights <= weights and one.kv_heads <= kv_heads for one in kept):
            continue
        kept[:] = [one for one in kept if not (total <= one.seconds and weights <= one.weights and kv_heads <= one.kv_heads)]
        kept.append(_Way(total, weights, kv_heads, (*way.names, option.name)))


def _bit(layouts: Sequence[Layout], layout: Layout) -> int:
    return 1 << layouts.index(layout)


def _units(way: Partitioning) -> int:
    """Into how many units it divides; 0 if it does not."""
    return next((layout.units for layout in (way.result, *way.inputs) if layout.units), 0)
