"""The choice among all cases: exhaustive, but for those whose lower bound shows that they can't matter."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from flexspec.passes.search.case import Case, Solved
from flexspec.passes.search.space import LATENCY, DraftOption, Shape

MEMORY = "memory"
BOUND = "cannot beat what was found"
LATENCY_BOUND = "latency bound"


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """What a search found.

    Attributes:
        ranking: the best strategies, each with other numbers or drafters, the choice first; at most as many as were asked for.
        front: those that no other is better than in time per token, tokens a second and devices at once, the fastest first.
        plain: the best without speculation; None if none is allowed.
        baseline: the default, one device without speculation; None if it does not fit.
        candidates: strategies that were compared, each with its best cut.
        pruned: those that were not costed in full, by the reason.
        without_memory: a lower bound of seconds a token of the best strategy that does not fit the memory, with its case; None if all fit.
        fastest: the least seconds a token of any strategy.
    """

    ranking: Sequence[Solved]
    front: Sequence[Solved]
    plain: Solved | None
    baseline: Solved | None
    candidates: int
    pruned: Mapping[str, int]
    without_memory: tuple[float, Case] | None
    fastest: float


def solve(cases: Iterable[Case], *, objective: str = LATENCY, max_seconds: float | None = None, top: int = 2) -> Solution:
    """The best strategies of all cases, exactly.

    Args:
        cases: all combinations of the other choices; members of a family are looked at if the family's own bound allows.
        objective: `latency` or `throughput`.
        max_seconds: most seconds a token of a request; None for any.
        top: length of the ranking.
    """
    pruned: Counter[str] = Counter()
    candidates = 0
    without_memory: tuple[float, Case] | None = None
    waiting: list[tuple[float, int, int, float, Case]] = []  # those with the best lower bounds come first
    order = count()

    def too_large(least: float, case: Case, number: int) -> None:
        nonlocal without_memory
        pruned[MEMORY] += number
        if without_memory is None or _score(objective, least, case) < _score(objective, *without_memory):
            without_memory = (least, case)

    def add(case: Case) -> int:
        bounds, fits = case.bounds()
        number = len(bounds) * _number(case)
        unfit = len(fits) - int(np.count_nonzero(fits))
        if unfit and (case.members is None or unfit == len(fits)):
            too_large(float(bounds[~fits].min()), case, unfit * _number(case))
        if unfit < len(fits):
            least = float(bounds[fits].min())
            heapq.heappush(waiting, (_score(objective, least, case), case.devices, next(order), least, case))
        return number

    for case in cases:
        candidates += add(case)
    ranking: list[Solved] = []
    front: list[Solved] = []
    plain: Solved | None = None
    baseline: Solved | None = None
    fastest = float("inf")
    while waiting:
        score, _, _, least, case = heapq.heappop(waiting)
        fits = case.bounds()[1]
        fitting = int(np.count_nonzero(fits)) * _number(case)
        may_be_best_plain = not case.option.placement and (plain is None or score < _key(objective, plain)[0])
        if not _is_default(case) and not may_be_best_plain and _hopeless(least, case, ranking, front, objective, top):
            pruned[BOUND] += fitting
            if case.members is not None and not fits.all():
                pruned[MEMORY] += (len(fits) - int(np.count_nonzero(fits))) * _number(case)
            continue
        if case.members is not None:
            for member in case.members[1]():
                add(member)
            continue
        solved = case.solve()
        if solved is None:
            too_large(least, case, fitting)
            continue
        if _is_default(case) and (baseline is None or _key(objective, solved) < _key(objective, baseline)):
            baseline = solved
        fastest = min(fastest, solved.seconds_per_token)
        if max_seconds is not None and solved.seconds_per_token > max_seconds:
            pruned[LATENCY_BOUND] += fitting
            continue
        if not case.option.placement and (plain is None or _key(objective, solved) < _key(objective, plain)):
            plain = solved
        ranking = _ranked([*ranking, solved], objective)[:top]
        if not any(_dominates(one, solved) for one in front):
            front = [one for one in front if not _dominates(solved, one)] + [solved]
    front.sort(key=lambda one: (one.seconds_per_token, -one.tokens_per_second, one.case.devices))
    return Solution(
        ranking=ranking,
        front=front,
        plain=plain,
        baseline=baseline,
        candidates=candidates,
        pruned=dict(pruned),
        without_memory=without_memory,
        fastest=fastest,
    )


def _ranked(found: Sequence[Solved], objective: str) -> list[Solved]:
    """The best first; of those that differ in how operators are divided alone, the best only."""
    kept: dict[tuple[Shape, DraftOption], Solved] = {}
    for one in sorted(found, key=lambda one: _key(objective, one)):
        kept.setdefault((one.case.shape, one.case.option), one)
    return list(kept.values())


def _number(case: Case) -> int:
    """Cases that a case stands for."""
    return 1 if case.members is None else case.members[0]


def _is_default(case: Case) -> bool:
    """One device, without speculation."""
    shape = case.shape
    return shape.dp * shape.pp * shape.tp == 1 and not case.option.placement


def _score(objective: str, seconds_per_token: float, case: Case) -> float:
    """Less is better."""
    return seconds_per_token if objective == LATENCY else -case.shape.batch / seconds_per_token


def _key(objective: str, solved: Solved) -> tuple[float, float, int, int, int]:
    """Of equally good ones the faster, then the smaller comes first."""
    case = solved.case
    score = _score(objective, solved.seconds_per_token, case)
    return (score, solved.seconds_per_token, case.devices, len(case.option.placement), solved.grown.size)


def _hopeless(least: float, case: Case, ranking: Sequence[Solved], front: Sequence[Solved], objective: str, top: int) -> bool:
    """Whether a case that takes at least so many seconds a token comes into neither the ranking nor the front."""
    if len(ranking) < top or _score(objective, least, case) <= _score(objective, ranking[-1].seconds_per_token, ranking[-1].case):
        return False
    most = case.shape.batch / least
    return any(one.seconds_per_token <= least and one.tokens_per_second >= most and one.case.devices <= case.devices for one in front)


def _dominates(one: Solved, other: Solved) -> bool:
    """Whether `one` is at least as good in everything."""
    return (
        one.seconds_per_token <= other.seconds_per_token
        and one.tokens_per_second >= other.tokens_per_second
        and one.case.devices <= other.case.devices
    )
