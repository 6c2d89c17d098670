"""Seconds of works and moves in passes of several sizes at once."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flexspec.passes.search.assign import Assignment, Move, Work
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.price import PassPrice
from flexspec.passes.search.stages import Floats
from flexspec.passes.search.times import OperatorTimes

COLLECTIVES = "collectives"


class PassCosts:
    """Prices as `PassPrice` has them, for every size of a pass; each is looked up once.

    Args:
        times: of operators.
        collectives: between devices.
        tokens: [sizes] of each request: the root and the drafts.
        requests: that share a pass.
        context: keys in the cache of each.
    """

    def __init__(self, times: OperatorTimes, collectives: Collectives, *, tokens: Sequence[int], requests: int, context: int) -> None:
        self._prices = [
            PassPrice(times=times, collectives=collectives, group=(0,), requests=requests, tokens=one, context=context) for one in tokens
        ]
        self._works: dict[Work, Floats] = {}
        self._moves: dict[tuple[Move, tuple[int, ...]], Floats] = {}

    def work(self, work: Work) -> Floats:
        """[sizes] of one device's work."""
        if work not in self._works:
            self._works[work] = np.array([one.operator(work) for one in self._prices])
        return self._works[work]

    def move(self, move: Move, group: tuple[int, ...]) -> Floats:
        """[sizes] of a parallel operator of a group."""
        if (move, group) not in self._moves:
            self._moves[move, group] = np.array([replace(one, group=group).move(move) for one in self._prices])
        return self._moves[move, group]

    def assignment(self, way: Assignment, group: tuple[int, ...]) -> Floats:
        """[sizes] of a place."""
        return np.asarray(np.sum(list(self.parts(way, group).values()), axis=0))

    def parts(self, way: Assignment, group: tuple[int, ...]) -> dict[str, Floats]:
        """[sizes] of a place, by kind of operator, and `collectives`."""
        found: dict[str, Floats] = {}
        for work in way.works:
            found[work.kind] = found.get(work.kind, 0.0) + self.work(work)
        for move in way.moves:
            found[COLLECTIVES] = found.get(COLLECTIVES, 0.0) + self.move(move, group)
        return found
