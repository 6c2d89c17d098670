"""One combination of the discrete choices but tree and cut: its costs, its lower bound, and its best tree and cut (equations 6, 10, 11)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexspec.passes.search.space import DraftOption, Shape
from flexspec.passes.search.stages import Floats, Ints, Split, StageProblem, split_layers
from flexspec.passes.search.trees import GrownTree

_SLACK = 1e-12
"""Relative; sums of the same times in another order differ by rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StageCosts:
    """What the stages of a pipeline take, in seconds and bytes, by the number of drafted nodes of a request: `sizes` of them, from 0 on.

    All arrays but `kinds` may have a dim for several micro-batches before that of the sizes.

    Attributes:
        stages: their number.
        kinds: [layers] number of each layer's kind.
        kind_seconds: [1 or stages, sizes, kinds] of a layer, its collectives included.
        first: [sizes] seconds of the first stage besides its layers.
        last: [sizes] seconds of the last stage besides its layers.
        between: [sizes] seconds of a pass in which no stage works: messages between stages.
        kind_bytes: [sizes, kinds] of a layer on the fullest device of a stage, its KV cache included.
        first_bytes: [sizes] of the first stage besides its layers.
        last_bytes: [sizes] of the last stage besides its layers and drafters.
        room: [sizes] bytes of a device for all that.
    """

    stages: int
    kinds: Ints
    kind_seconds: Floats
    first: Floats
    last: Floats
    between: Floats
    kind_bytes: Floats
    first_bytes: Floats
    last_bytes: Floats
    room: Floats

    def at(self, place: int) -> "StageCosts":
        """Of one of several micro-batches."""
        names = ("first", "last", "between", "kind_bytes", "first_bytes", "last_bytes", "room")
        arrays = {name: getattr(self, name)[place] for name in names}
        return StageCosts(stages=self.stages, kinds=self.kinds, kind_seconds=self.kind_seconds[:, place], **arrays)

    @cached_property
    def _counts(self) -> Floats:
        return np.bincount(self.kinds, minlength=self.kind_bytes.shape[-1]).astype(float)

    @cached_property
    def layers_seconds(self) -> Floats:
        """[sizes] that all layers take at least: the fastest stages hold as many as memory allows, every stage one."""
        fastest = self.kind_seconds.min(axis=0)
        total = np.asarray(fastest @ self._counts)
        stages = len(self.kind_seconds)
        if stages == 1:
            return total
        extra = (self.kind_seconds - fastest).min(axis=-1)  # [stages, sizes] that any layer takes longer there
        rooms = np.repeat(self.room[None, :], stages, axis=0)
        rooms[0] -= self.first_bytes
        rooms[-1] -= self.last_bytes
        most = np.maximum(np.floor(rooms / self.kind_bytes.min(axis=-1) * (1 + _SLACK)), 1.0)
        order = np.argsort(extra, axis=0)
        extra, more = np.take_along_axis(extra, order, axis=0), np.take_along_axis(most, order, axis=0) - 1
        before = np.cumsum(more, axis=0) - more
        further = np.clip(len(self.kinds) - stages - before, 0.0, more)  # layers of a stage besides its first
        return np.asarray(total + (extra * (1 + further)).sum(axis=0))

    @cached_property
    def _slowness(self) -> Floats:
        """[stages, sizes] how many times as long as on the fastest stage any layer takes at least."""
        slowness = (self.kind_seconds / self.kind_seconds.min(axis=0)).min(axis=-1)
        return np.asarray(np.repeat(slowness, self.stages, axis=0) if len(slowness) == 1 else slowness)

    @cached_property
    def last_share(self) -> Floats:
        """[sizes] by how much every stage takes longer at least for a second more on the last one, layers being moved to the others."""
        return np.asarray(1.0 / self._slowness[-1] / (1.0 / self._slowness).sum(axis=0))

    @cached_property
    def mean_seconds(self) -> Floats:
        """[sizes] that the longest stage takes at least: all alike, as if layers could be cut anywhere."""
        work = self.kind_seconds.min(axis=0) @ self._counts + self.first / self._slowness[0] + self.last / self._slowness[-1]
        return np.asarray(work / (1.0 / self._slowness).sum(axis=0))

    @cached_property
    def layers_bytes(self) -> Floats:
        """[sizes] of all layers."""
        return np.asarray(self.kind_bytes @ self._counts)


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftCosts:
    """What drafting takes, by tree; arrays may have a dim for several micro-batches before that of the trees.

    Attributes:
        trees: that are compared.
        host: [trees] seconds of the driver's host in a step, in which it runs nothing else.
        beside: [trees] seconds of the drafters that run on the driver, one after the other.
        apart: [trees] seconds of the slowest of those with devices of their own.
        beside_bytes: of the drafters on the driver, caches included; [micro-batches, 1] of several.
        apart_bytes: of the largest of the others; so, too.
    """

    trees: tuple[GrownTree, ...]
    host: Floats
    beside: Floats
    apart: Floats
    beside_bytes: Any
    apart_bytes: Any

    def at(self, place: int) -> "DraftCosts":
        """Of one of several micro-batches."""
        arrays = {name: getattr(self, name)[place] for name in ("host", "beside", "apart")}
        beside_bytes, apart_bytes = float(self.beside_bytes[place, 0]), float(self.apart_bytes[place, 0])
        return DraftCosts(trees=self.trees, beside_bytes=beside_bytes, apart_bytes=apart_bytes, **arrays)

    @cached_property
    def sizes(self) -> Ints:
        """[trees] drafted nodes."""
        return np.array([tree.size for tree in self.trees], dtype=np.intp)

    @cached_property
    def expected(self) -> Floats:
        """[trees] tokens a step."""
        return np.array([tree.expected for tree in self.trees])


@dataclass(frozen=True, kw_only=True, eq=False)
class Solved:
    """A strategy with its cost.

    Attributes:
        case: the choices that are not about tree and cut.
        tree: index of the tree.
        split: the cut.
        cycle: seconds from one step of a request to its next.
    """

    case: "Case"
    tree: int
    split: Split
    cycle: float

    @property
    def grown(self) -> GrownTree:
        """The tree."""
        return self.case.drafting.trees[self.tree]

    @property
    def seconds_per_token(self) -> float:
        """Of a request."""
        return self.cycle / self.grown.expected

    @property
    def tokens_per_second(self) -> float:
        """Of all requests."""
        return self.case.shape.batch / self.seconds_per_token


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """The choices that are not about tree and cut, with their costs.

    Attributes:
        shape: numbers of everything.
        option: the drafters.
        division: the way in which the model is divided over the devices of a stage; nothing here looks at it.
        stages: costs of the model.
        drafting: costs of drafting.
        members: of a family of cases that differ in the division alone: how many, and what makes them; its own costs are the least of
            theirs, each by itself. None of a single case.
    """

    shape: Shape
    option: DraftOption
    division: Any
    stages: StageCosts
    drafting: DraftCosts
    members: "tuple[int, Callable[[], Sequence[Case]]] | None" = None

    @cached_property
    def devices(self) -> int:
        """Devices that are used."""
        return self.shape.dp * (self.shape.pp * self.shape.tp + len(self.option.own_devices))

    @property
    def number(self) -> int:
        """Cases that it stands for."""
        return 1 if self.members is None else self.members[0]

    def bounds(self) -> tuple[Floats, NDArray[np.bool_]]:
        """[trees] seconds a token that no cut can be better than, and whether the memory of all stages together is enough."""
        return lower_bounds(self.stages, self.drafting, self.shape.micro_batches)

    def solve(self, limit: float = float("inf")) -> tuple[Solved | None, int]:
        """The best tree and cut, and how many trees do not fit.

        Args:
            limit: of the seconds a token; where nothing keeps it, what is found need not be the best.
        """
        bounds, fits = self.bounds()
        best: Solved | None = None
        impossible: set[int] = set()
        for tree in np.argsort(np.where(fits, bounds, np.inf), kind="stable").tolist():
            most = limit if best is None else min(limit, best.seconds_per_token)
            if not fits[tree] or bounds[tree] > most or (best is not None and bounds[tree] >= best.seconds_per_token):
                break
            size = int(self.drafting.sizes[tree])
            if size in impossible:
                continue
            solved = self.cut(tree, most)
            if solved is None:
                impossible.add(size)
            elif best is None or solved.seconds_per_token < best.seconds_per_token:
                best = solved
        return best, int(np.isin(self.drafting.sizes, list(impossible)).sum() + np.count_nonzero(~fits))

    def cut(self, tree: int, limit: float = float("inf")) -> Solved | None:
        """The best cut with a tree, or any if none keeps a limit of seconds a token; None if none fits."""
        costs, drafting, size = self.stages, self.drafting, int(self.drafting.sizes[tree])
        host, beside, apart = (float(values[tree]) for values in (drafting.host, drafting.beside, drafting.apart))
        fixed, rooms = np.zeros(self.shape.pp), np.full(self.shape.pp, costs.room[size])
        fixed[0] += costs.first[size]
        fixed[-1] += costs.last[size] + host + beside
        rooms[0] -= costs.first_bytes[size]
        rooms[-1] -= costs.last_bytes[size] + drafting.beside_bytes
        problem = StageProblem(
            seconds=costs.kind_seconds[:, size, :][:, costs.kinds], num_bytes=costs.kind_bytes[size][costs.kinds], fixed=fixed, rooms=rooms
        )
        between = float(costs.first[size] + costs.last[size] + costs.between[size]) + host + max(beside, apart)
        most = limit * self.drafting.trees[tree].expected * (1 + _SLACK)
        split = split_layers(problem, between=between, micro_batches=self.shape.micro_batches, other=apart, limit=most)
        if split is None:
            return None
        cycle = max(split.total + between, self.shape.micro_batches * max(split.longest, apart))
        return Solved(case=self, tree=tree, split=split, cycle=cycle)


def lower_bounds(costs: StageCosts, drafting: DraftCosts, micro_batches: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """[..., trees] seconds a token that no cut can be better than, and whether the memory of all stages together is enough.

    Args:
        costs: of the model; of several micro-batches if the arrays have a dim for them.
        drafting: of as many.
        micro_batches: under way at once; [micro-batches, 1] of several.
    """
    sizes = drafting.sizes
    hosted = drafting.host + drafting.beside
    total = (costs.layers_seconds + costs.first + costs.last + costs.between)[..., sizes]
    total = total + drafting.host + np.maximum(drafting.beside, drafting.apart)
    longest = np.maximum(costs.mean_seconds[..., sizes] + hosted * costs.last_share[..., sizes], costs.last[..., sizes] + hosted)
    cycles = np.maximum(total, micro_batches * np.maximum(longest, drafting.apart))
    need = (costs.layers_bytes + costs.first_bytes + costs.last_bytes)[..., sizes] + drafting.beside_bytes
    room = costs.room[..., sizes] * (1 + _SLACK)
    return cycles * (1 - _SLACK) / drafting.expected, (need <= costs.stages * room) & (drafting.apart_bytes <= room)
