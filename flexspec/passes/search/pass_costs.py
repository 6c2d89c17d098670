"""Seconds of works and moves in passes of several sizes, each looked up once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.price import PassPrice
from flexspec.passes.search.stages import Floats
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.work import Assignment, Move, Work

COLLECTIVES = "collectives"


class PassCosts:
    """Prices as `PassPrice` has them.

    Args:
        times: of operators.
        collectives: between devices.
        requests: [requests] that share a pass.
        tokens: [sizes] of each request: the root and the drafts.
        context: keys in the cache of each.
    """

    def __init__(
        self, times: OperatorTimes, collectives: Collectives, *, requests: Sequence[int], tokens: Sequence[int], context: int
    ) -> None:
        self._price = PassPrice(
            times=times,
            collectives=collectives,
            requests=np.array(requests, dtype=np.intp)[:, None],
            tokens=np.array(tokens, dtype=np.intp)[None, :],
            context=context,
        )
        self._works: dict[Work, Floats] = {}
        self._moves: dict[tuple[Move, tuple[int, ...]], Floats] = {}

    def work(self, work: Work) -> Floats:
        """[requests, sizes] of one device's work."""
        if work not in self._works:
            self._works[work] = self._price.operator(work)
        return self._works[work]

    def move(self, move: Move, group: tuple[int, ...]) -> Floats:
        """[requests, sizes] of a parallel operator of a group."""
        if (move, group) not in self._moves:
            self._moves[move, group] = self._price.move(move, group)
        return self._moves[move, group]

    def assignment(self, way: Assignment, group: tuple[int, ...]) -> Floats:
        """[requests, sizes] of a place."""
        return np.asarray(np.sum(list(self.parts(way, group).values()), axis=0))

    def parts(self, way: Assignment, group: tuple[int, ...]) -> dict[str, Floats]:
        """[requests, sizes] of a place, by kind of operator, and `collectives`."""
        found: dict[str, Floats] = {}
        for work in way.works:
            found[work.kind] = found.get(work.kind, 0.0) + self.work(work)
        for move in way.moves:
            found[COLLECTIVES] = found.get(COLLECTIVES, 0.0) + self.move(move, group)
        return found

    def of_one(self, request: int, size: int, group: Sequence[int]) -> "OnePass":
        """Prices of the pass with the given place among requests and sizes, on a group."""
        return OnePass(self, (request, size), tuple(group))


@dataclass(frozen=True)
class OnePass:
    """Prices of one pass, as `Assigner.ways` takes them."""

    costs: PassCosts
    place: tuple[int, int]
    group: tuple[int, ...]

    def operator(self, work: Work) -> float:
        """Seconds of one device's work."""
        return float(self.costs.work(work)[self.place])

    def move(self, move: Move) -> float:
        """Seconds of a parallel operator."""
        return float(self.costs.move(move, self.group)[self.place])
