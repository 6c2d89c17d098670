"""How the operators of a place are divided over the devices of a tensor-parallel group: the best ways, exactly.

Dynamic programming over the operators in graph order. What comes later depends on what came before by the layouts alone in which values
that are still needed are there, so of all ways to the same layouts only those are kept that no other one beats in time, weights and KV
heads at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flexspec.errors import UsageError
from flexspec.ir.partition import REPLICATED
from flexspec.passes.search.divided_place import DividedPlace, Option, all_units, useful_units
from flexspec.passes.search.records import BlockRecord
from flexspec.passes.search.work import Assignment, Move, Price, Work


class Assigner:
    """Divides a place, for as many price lists as are wanted.

    Args:
        block: the place.
        degree: devices of the group.

    Raises:
        UsageError: if no operator can be divided by so many devices.
    """

    def __init__(self, block: BlockRecord, degree: int) -> None:
        reason = why_not(block, degree)
        if reason is not None:
            raise UsageError(reason)
        self._place = DividedPlace(block, degree, useful_units(block, degree))
        self._steps: dict[tuple[int, State], list[_Step]] = {}

    def ways(self, price: Price) -> list[Assignment]:
        """All ways that no other way beats in seconds, weights and KV heads at once, the fastest first; `price` is what things take."""
        return _Search(self._place, price, self._steps).run()


def assignment(block: BlockRecord, names: Sequence[str], degree: int) -> Assignment:
    """A given way to divide a place, not priced yet.

    Raises:
        UsageError: if the place can't be divided so.
    """
    return DividedPlace(block, degree, all_units(block, degree)).assignment(names)


def most_devices(block: BlockRecord) -> int:
    """The largest group that any operator can be divided over."""
    return max((way.units for operator in block.operators for way in operator.partitionings), default=1) or 1


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
    most = max(way.units for way in attention.partitionings)
    if degree <= most:
        return None
    return (
        f"tp={degree}: the {attention.heads} query heads of {block.name} share {attention.kv_heads} KV heads, so attention and its KV "
        f"cache are whole on every device; up to tp={most} they are divided"
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """A way through the operators so far, and the one it goes on from."""

    seconds: float
    weights: int
    kv_heads: int
    names: tuple[str, ...]


State = tuple[int, ...]
"""For each value that is still needed, the layouts it is there in, and above them those that a linear has read it in."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What can be done at an operator: the states of what it reads after it, what is worked and moved for it, and the option."""

    changed: State
    work: Work
    moves: Sequence[Move]
    option: Option


class _Search:
    """Goes through the operators; it is its own price list, and adds to the steps that are known."""

    def __init__(self, place: DividedPlace, price: Price, known: dict[tuple[int, State], list[_Step]]) -> None:
        self.place, self.price, self.known = place, price, known
        self.prices: dict[Work | Move, float] = {}

    def run(self) -> list[Assignment]:
        """The best ways."""
        block, whole = self.place.block, self.place.bit(REPLICATED)
        live = list(range(len(block.inputs)))  # values whose states make up a state
        ways: dict[State, list[_Way]] = {(whole,) * len(live): [_Way(0.0, 0, 0, ())]}
        for number, operator in enumerate(block.operators):
            values = list(dict.fromkeys(operator.reads))
            read, later = [live.index(value) for value in values], self._read_after(number)
            kept = [place for place, value in enumerate(live) if value in later]
            steps: dict[State, list[tuple[State, float, Option]]] = {}
            found: dict[State, list[_Way]] = {}
            for state, before in ways.items():
                key = tuple(state[place] for place in read)
                if key not in steps:
                    steps[key] = self._priced_steps(number, key, values)
                for changed, seconds, option in steps[key]:
                    after = list(state)
                    for place, value in zip(read, changed, strict=True):
                        after[place] = value
                    reached = (*[after[place] for place in kept], option.gives)
                    _merge(found.setdefault(reached, []), before, seconds, option)
            ways, live = found, [*(live[place] for place in kept), len(block.inputs) + number]
        return self._best(ways)

    def _read_after(self, number: int) -> set[int]:
        """Values that are read by later operators."""
        return {value for operator in self.place.block.operators[number + 1 :] for value in operator.reads}

    def _priced_steps(self, number: int, key: State, values: Sequence[int]) -> list[tuple[State, float, Option]]:
        """What can be done at an operator that reads values in these states: their states after it, the seconds, and the option."""
        if (number, key) not in self.known:
            self.known[number, key] = list(self._steps(number, dict(zip(values, key, strict=True))))
        steps = self.known[number, key]
        return [(step.changed, self.operator(step.work) + sum(map(self.move, step.moves)), step.option) for step in steps]

    def _steps(self, number: int, states: Mapping[int, int]) -> Iterator[_Step]:
        operator, mask = self.place.block.operators[number], (1 << len(self.place.layouts)) - 1
        for option in self.place.options[number]:
            have = {value: state & mask for value, state in states.items()}
            moves = self.place.brought(operator.reads, option.needs, have)
            if moves is None:
                continue
            after = {value: have[value] | state & ~mask for value, state in states.items()}
            is_fused = False
            if operator.kind == "linear":
                source, flag = operator.reads[0], option.needs[0] << len(self.place.layouts)
                is_fused = bool(after[source] & flag)
                after[source] |= flag
            yield _Step(tuple(after.values()), option.work(is_fused), moves, option)

    def operator(self, work: Work) -> float:
        """One device's work, looked up once."""
        if work not in self.prices:
            self.prices[work] = self.price.operator(work)
        return self.prices[work]

    def move(self, move: Move) -> float:
        """A parallel operator, looked up once."""
        if move not in self.prices:
            self.prices[move] = self.price.move(move)
        return self.prices[move]

    def _best(self, ways: dict[State, list[_Way]]) -> list[Assignment]:
        whole, last = self.place.bit(REPLICATED), len(self.place.widths) - 1
        kept: list[_Way] = []
        for state, some in ways.items():
            moves = self.place.brought((last,), (whole,), {last: state[-1]}) or []
            _merge(kept, some, sum(map(self.move, moves)), None)
        results = [self.place.assignment(way.names).priced(self) for way in kept]
        results.sort(key=lambda one: (one.seconds, one.weights, one.kv_heads, len(one.moves)))
        front: list[Assignment] = []
        for one in results:
            if not any(other.weights <= one.weights and other.kv_heads <= one.kv_heads for other in front):
                front.append(one)
        return front


def _merge(kept: list[_Way], before: Sequence[_Way], seconds: float, option: Option | None) -> None:
    """Add ways that go on by an option, or end, to those to the same layouts, and drop what is no better than another in anything."""
    own_weights, own_heads, names = (0, 0, ()) if option is None else (option.weights, option.kv_heads, (option.name,))
    for way in before:
        total, weights = way.seconds + seconds, way.weights + own_weights
        kv_heads = max(way.kv_heads, own_heads)
        for one in kept:
            if one.seconds <= total and one.weights <= weights and one.kv_heads <= kv_heads:
                break
        else:
            kept[:] = [one for one in kept if not (total <= one.seconds and weights <= one.weights and kv_heads <= one.kv_heads)]
            kept.append(_Way(total, weights, kv_heads, (*way.names, *names)))
