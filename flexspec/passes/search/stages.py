"""Where a pipeline is cut: the split of layers into stages with the shortest cycle of a decode pipeline (equation 6).

On equal devices the sum of all stages is the same for every cut, so the shortest longest stage is wanted: with a bound on it, stages
that take all they can get furthest, and halving finds the least bound. On unequal ones the sum matters: with a bound on the time of any
one stage it falls as the bound rises, and the cycle is the larger of that sum and the bound times the micro-batches. So the best bound
is where the two cross, among the distinct times that stages can have.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
_SLACK = 1e-12
"""Relative; sums of the same times in another order differ by rounding."""
_SAME = 1e-10
"""Relative; longest stages that are closer than this count as equal."""


@dataclass(frozen=True, kw_only=True)
class StageProblem:
    """Layers to be divided over the stages of a pipeline, at least one for each.

    Attributes:
        seconds: [1 or stages, layers] of each layer, on every stage's devices alike or on each stage's.
        num_bytes: [layers] of memory.
        fixed: [stages] seconds of what a stage does besides its layers, and what it hosts.
        rooms: [stages] bytes that a stage has for layers.
    """

    seconds: Floats
    num_bytes: Floats
    fixed: Floats
    rooms: Floats

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.fixed)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.num_bytes)

    @cached_property
    def time_sums(self) -> list[list[float]]:
        """Of each stage's seconds, sums of the first 0, 1, … layers."""
        rows = [list(accumulate(row, initial=0.0)) for row in self.seconds.tolist()]
        return rows * (self.stages if len(rows) == 1 else 1)

    @cached_property
    def byte_sums(self) -> list[float]:
        """Sums of the bytes of the first 0, 1, … layers."""
        return list(accumulate(self.num_bytes.tolist(), initial=0.0))


@dataclass(frozen=True, kw_only=True)
class Split:
    """A cut.

    Attributes:
        layers: of each stage.
        total: seconds of all layers, what stages do besides not included.
        longest: seconds of the longest stage, all that it does included.
    """

    layers: tuple[int, ...]
    total: float
    longest: float


def split_layers(
    problem: StageProblem, *, between: float = 0.0, micro_batches: int = 1, other: float = 0.0, limit: float = float("inf")
) -> Split | None:
    """The split with the shortest cycle, max(total + between, micro_batches · max(longest, other)); None if memory allows none.

    Args:
        problem: the layers.
        between: what a cycle takes besides the layers: ends, transfers, drafting, the host.
        micro_batches: under way at once.
        other: seconds of the busiest device that is no stage.
        limit: of the cycle; where none keeps it, any split does.
    """
    if problem.stages > problem.layers:
        return None
    if len(problem.seconds) == 1:  # the sum is the same for every cut
        return _shortest(problem, between, micro_batches, limit)
    best = _least_total(problem, float("inf"))
    if best is None or micro_batches == 1:  # with one micro-batch no stage waits for another: the sum counts alone
        return best

    def cycle(split: Split) -> float:
        return max(split.total + between, micro_batches * max(split.longest, other))

    if cycle(best) > limit:
        within = _least_total(problem, limit / micro_batches)
        if within is None or within.total + between > limit:
            return best
    bounds = _stage_times(problem)
    low, high = 0, len(bounds) - 1
    while low <= high:
        middle = (low + high) // 2
        split = _least_total(problem, bounds[middle])
        if split is not None and cycle(split) < cycle(best):
            best = split
        if split is not None and split.total + between <= micro_batches * max(bounds[middle], other):
            high = middle - 1
        else:
            low = middle + 1
    return best


def _shortest(problem: StageProblem, between: float, micro_batches: int, limit: float) -> Split | None:
    """The split with the shortest longest stage, of stages with equal devices."""
    best = _fill(problem, float("inf"))
    if best is None or best.total + between > limit:
        return best
    if micro_batches * best.longest > limit and _fill(problem, limit / micro_batches) is None:
        return best
    low = (problem.time_sums[0][-1] + float(problem.fixed.sum())) / problem.stages  # all stages alike
    bound = low
    while best.longest > low * (1 + _SAME):
        split = _fill(problem, bound)
        if split is None:
            low = bound
        else:
            best = split
        bound = (low + best.longest) / 2
    return best


def _stage_times(problem: StageProblem) -> list[float]:
    """The distinct times that a stage can have."""
    found: set[float] = set()
    ends = {(tuple(row), fixed) for row, fixed in zip(problem.time_sums, problem.fixed.tolist(), strict=True)}
    for row, fixed in ends:
        sums = np.array(row)
        found.update((fixed + np.unique((sums[None, :] - sums[:, None])[np.triu_indices(len(sums), 1)])).tolist())
    return sorted(found)


def _fill(problem: StageProblem, bound: float) -> Split | None:
    """A split with no stage above the bound: as many layers as bound and memory allow, stage by stage, which gets furthest."""
    bound *= 1 + _SLACK
    at, ends = 0, [0]
    for stage in range(problem.stages):
        end = min(_furthest(problem, stage, at, bound), problem.layers - (problem.stages - 1 - stage))
        if end <= at:  # of the layers that are left this stage can't take one: those before it may have taken too many
            return _search(problem, bound)
        ends.append(end)
        at = end
    return _split_at(problem, ends) if at == problem.layers else None


def _search(problem: StageProblem, bound: float) -> Split | None:
    """The same by all ends that stages can have, the furthest tried first."""
    reached: list[dict[int, int]] = [{0: -1}]  # for each stage: its ends, with one of the starts that lead to each
    for stage in range(problem.stages):
        ends: dict[int, int] = {}
        for start in reached[-1]:
            for end in range(start + 1, _furthest(problem, stage, start, bound) + 1):
                ends.setdefault(end, start)
        reached.append(ends)
    if problem.layers not in reached[-1]:
        return None
    cuts = [problem.layers]
    for ends in reversed(reached[1:]):
        cuts.insert(0, ends[cuts[0]])
    return _split_at(problem, cuts)


def _furthest(problem: StageProblem, stage: int, start: int, bound: float) -> int:
    """Where a stage ends that begins at `start` and takes all layers that it can."""
    sums, sizes = problem.time_sums[stage], problem.byte_sums
    by_time = bisect_right(sums, sums[start] + bound - float(problem.fixed[stage]))
    by_memory = bisect_right(sizes, sizes[start] + float(problem.rooms[stage]) * (1 + _SLACK))
    return min(by_time, by_memory) - 1


def _least_total(problem: StageProblem, bound: float) -> Split | None:
    """Dynamic programming over (stage, layers so far): the split with the least sum of which no stage takes longer than the bound."""
    bound *= 1 + _SLACK
    layers, sizes = problem.layers, np.array(problem.byte_sums)
    totals = np.full(layers + 1, np.inf)
    totals[0] = 0.0
    choices: list[NDArray[np.intp]] = []
    later = np.arange(layers + 1)[None, :] > np.arange(layers + 1)[:, None]
    for row, fixed, room in zip(problem.time_sums, problem.fixed, problem.rooms, strict=True):
        sums = np.array(row)
        seconds = sums[None, :] - sums[:, None]
        allowed = later & (seconds + fixed <= bound) & (sizes[None, :] - sizes[:, None] <= room * (1 + _SLACK))
        costs = np.where(allowed, totals[:, None] + seconds, np.inf)
        choices.append(np.argmin(costs, axis=0))
        totals = np.min(costs, axis=0)
    if not np.isfinite(totals[layers]):
        return None
    ends = [layers]
    for choice in reversed(choices):
        ends.insert(0, int(choice[ends[0]]))
    return _split_at(problem, ends)


def _split_at(problem: StageProblem, ends: Sequence[int]) -> Split:
    seconds = [row[end] - row[start] for row, start, end in zip(problem.time_sums, ends, ends[1:], strict=False)]
    counts = tuple(end - start for start, end in pairwise(ends))
    longest = max(fixed + one for fixed, one in zip(problem.fixed.tolist(), seconds, strict=True))
    return Split(layers=counts, total=sum(seconds), longest=longest)
