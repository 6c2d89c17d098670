"""The choice among all cases: exhaustive, but for those whose lower bound shows that they can't matter."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flexspec.passes.search.case import Case, Solved
from flexspec.passes.search.columns import Columns, columns_of
from flexspec.passes.search.space import LATENCY, DraftOption, Shape
from flexspec.passes.search.stages import Floats, Ints

MEMORY = "memory"
BOUND = "cannot beat what was found"
LATENCY_BOUND = "latency bound"
_AT_ONCE = 16
"""Cases that are looked at before those that are left are compared with what was found."""
_SLACK = 1e-12
"""Relative, of rounding."""


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
        excluded: a lower bound of the score of the best strategy that takes longer than allowed; None if none does.
        fastest: the least seconds a token of any strategy, the bound on them aside.
    """

    ranking: Sequence[Solved]
    front: Sequence[Solved]
    plain: Solved | None
    baseline: Solved | None
    candidates: int
    pruned: Mapping[str, int]
    without_memory: tuple[float, Case] | None
    excluded: float | None
    fastest: float


def solve(cases: Iterable[Case | Columns], *, objective: str = LATENCY, max_seconds: float | None = None, top: int = 2) -> Solution:
    """The best strategies of all cases, exactly.

    Args:
        cases: all combinations of the other choices; members of a family are looked at if the family's own bound allows.
        objective: `latency` or `throughput`.
        max_seconds: most seconds a token of a request; None for any.
        top: length of the ranking.
    """
    pool = _Pool([columns_of(one) if isinstance(one, Case) else one for one in cases], objective)
    search = _Search(pool, objective, float("inf") if max_seconds is None else max_seconds, top)
    search.run()
    fastest = min((one.seconds_per_token for one in search.front), default=float("inf"))
    if max_seconds is not None and not search.front:
        fastest = _fastest(pool)
    return Solution(
        ranking=search.ranking,
        front=sorted(search.front, key=lambda one: (one.seconds_per_token, -one.tokens_per_second, one.case.devices)),
        plain=search.plain,
        baseline=search.baseline,
        candidates=int((pool.trees * pool.members).sum()),
        pruned=dict(search.pruned),
        without_memory=search.without_memory,
        excluded=search.excluded,
        fastest=fastest,
    )


class _Pool:
    """All cases, as columns of numbers."""

    def __init__(self, columns: Sequence[Columns], objective: str) -> None:
        self.columns = columns
        counts = [len(one.shapes) for one in columns]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        shapes = [shape for one in columns for shape in one.shapes]
        sizes = [shape.pp * shape.tp for shape in shapes]
        own = np.repeat([len(one.option.own_devices) for one in columns], counts).astype(np.intp)
        replicas = np.array([shape.dp for shape in shapes], dtype=np.intp)
        self.plain = np.repeat([not one.option.placement for one in columns], counts).astype(bool)
        self.devices = replicas * (np.array(sizes, dtype=np.intp) + own)
        self.default = self.plain & (self.devices == 1)
        self.batch = np.array([shape.batch for shape in shapes], dtype=np.intp)
        self.trees = np.repeat([one.trees for one in columns], counts).astype(np.intp)
        self.members = np.repeat([one.members for one in columns], counts).astype(np.intp)
        self.least: Floats = np.concatenate([np.zeros(0), *(one.least for one in columns)])
        self.fitting: Ints = np.concatenate([np.zeros(0, dtype=np.intp), *(one.fitting for one in columns)])
        self.score = _scores(objective, self.least, self.batch)
        self.unfit: Floats = np.concatenate([np.zeros(0), *(one.unfit for one in columns)])

    def case(self, number: int) -> Case:
        """The case with a number."""
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self.columns[place].case(number - int(self._starts[place]))


def _fastest(pool: _Pool) -> float:
    """The least seconds a token of any strategy; infinite if none fits."""
    best = float("inf")
    for number in np.argsort(pool.least, kind="stable").tolist():
        if pool.least[number] >= best:
            break
        case = pool.case(number)
        for member in [case] if case.members is None else case.members[1]():
            solved, _ = member.solve(best)
            best = best if solved is None else min(best, solved.seconds_per_token)
    return best


class _Search:
    """Goes through a pool's cases, those with the best lower bounds first."""

    def __init__(self, pool: _Pool, objective: str, max_seconds: float, top: int) -> None:
        self.pool, self.objective, self.max_seconds, self.top = pool, objective, max_seconds, top
        self.pruned: Counter[str] = Counter()
        self.ranking: list[Solved] = []
        self.front: list[Solved] = []
        self.plain: Solved | None = None
        self.baseline: Solved | None = None
        self.without_memory: tuple[float, Case] | None = None
        self.excluded: float | None = None
        self._dominated = np.zeros(len(pool.least), dtype=bool)
        self._compared: list[Solved] = []  # members of the front that all waiting cases were compared with

    def run(self) -> None:
        """Look at all that could matter."""
        pool = self.pool
        unfit = _scores(self.objective, pool.unfit, pool.batch)
        if len(unfit) and np.isfinite(pool.unfit).any():
            best = int(np.argmin(np.where(np.isfinite(pool.unfit), unfit, np.inf)))
            self.without_memory = (float(pool.unfit[best]), pool.case(best))
        order = np.lexsort((pool.devices, pool.score, ~pool.default))  # the default first: it is shown whatever it is like
        fits = pool.fitting > 0
        self._prune(MEMORY, order[~fits[order]])
        waiting = order[fits[order]]
        while len(waiting):
            some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            for number in some.tolist():
                self._look_at(number)
            waiting = self._still_waiting(waiting)

    def _look_at(self, number: int) -> None:
        case = self.pool.case(number)
        is_default = bool(self.pool.default[number])
        limit = self._limit(case, is_default)
        if float(self.pool.least[number]) > limit:
            self._prune(self._reason(float(self.pool.least[number]), case), np.array([number]))
            return
        members = [case] if case.members is None else sorted(case.members[1](), key=lambda one: float(one.bounds()[0].min()))
        for member in members:
            self._solve(member, is_default)

    def _solve(self, case: Case, is_default: bool) -> None:
        """Look at a case that is no family."""
        bounds, fits = case.bounds()
        if not fits.any():
            self._too_large(float(bounds.min()), case, len(bounds))
            return
        least, fitting = float(bounds[fits].min()), int(np.count_nonzero(fits))
        limit = self._limit(case, is_default)
        if least > limit:
            self.pruned[MEMORY] += len(bounds) - fitting
            self._exclude(self._reason(least, case), least, case, fitting)
            return
        solved, too_large = case.solve(limit)
        if too_large:
            self._too_large(least, case, too_large) if solved is None else self.pruned.update({MEMORY: too_large})
        if solved is None:
            return
        if is_default and (self.baseline is None or _key(self.objective, solved) < _key(self.objective, self.baseline)):
            self.baseline = solved
        if solved.seconds_per_token > limit or solved.seconds_per_token > self.max_seconds:
            self._exclude(self._reason(solved.seconds_per_token, case), solved.seconds_per_token, case, len(bounds) - too_large)
            return
        if not case.option.placement and (self.plain is None or _key(self.objective, solved) < _key(self.objective, self.plain)):
            self.plain = solved
        self.ranking = _ranked([*self.ranking, solved], self.objective)[: self.top]
        if not any(_dominates(one, solved) for one in self.front):
            self.front = [one for one in self.front if not _dominates(solved, one)] + [solved]

    def _limit(self, case: Case, is_default: bool) -> float:
        """Most seconds a token with which a case comes into the ranking, the front, or what else is shown."""
        if is_default:
            return float("inf")
        found = [self._ranked_within(case.shape.batch)]
        found += [self._front_within(case)]
        if not case.option.placement:
            found += [float("inf") if self.plain is None else _within(self.objective, self.plain, case.shape.batch)]
        return min(max(found), self.max_seconds) * (1 + _SLACK)

    def _ranked_within(self, batch: int) -> float:
        return float("inf") if len(self.ranking) < self.top else _within(self.objective, self.ranking[-1], batch)

    def _front_within(self, case: Case) -> float:
        devices, batch = case.devices, case.shape.batch
        others = (one for one in self.front if one.case.devices <= devices)
        return min((max(one.seconds_per_token, batch / one.tokens_per_second) for one in others), default=float("inf"))

    def _still_waiting(self, waiting: Ints) -> Ints:
        """Leave out those that can't matter any more."""
        pool = self.pool
        slow = pool.least[waiting] > self.max_seconds
        if self.excluded is None and slow.any():
            self.excluded = float(pool.score[waiting[slow][0]])  # they are sorted
        self._prune(LATENCY_BOUND, waiting[slow])
        waiting = waiting[~slow]
        if len(self.ranking) < self.top:
            return waiting
        least, batch, devices = pool.least[waiting], pool.batch[waiting], pool.devices[waiting]
        dominated = self._dominated[waiting]
        for one in self.front:
            if not any(one is other for other in self._compared):
                dominated |= (one.seconds_per_token <= least) & (one.tokens_per_second * least >= batch) & (one.case.devices <= devices)
        self._dominated[waiting], self._compared = dominated, list(self.front)
        hopeless = dominated & (pool.score[waiting] > _key(self.objective, self.ranking[-1])[0])
        if self.plain is None:
            hopeless &= ~pool.plain[waiting]
        else:
            hopeless &= ~pool.plain[waiting] | (pool.score[waiting] >= _key(self.objective, self.plain)[0])
        self._prune(BOUND, waiting[hopeless])
        return waiting[~hopeless]

    def _reason(self, least: float, case: Case) -> str:
        """Why a case that takes so many seconds a token at least is left out."""
        return LATENCY_BOUND if least > self.max_seconds else BOUND

    def _exclude(self, reason: str, least: float, case: Case, number: int) -> None:
        self.pruned[reason] += number
        if reason == LATENCY_BOUND:
            score = _score(self.objective, least, case)
            self.excluded = score if self.excluded is None else min(score, self.excluded)

    def _prune(self, reason: str, numbers: Ints) -> None:
        """Count cases that are left out, and trees of them that do not fit."""
        pool = self.pool
        fitting = int((pool.fitting * pool.members)[numbers].sum())
        unfit = int((pool.trees * pool.members)[numbers].sum()) - fitting
        if fitting:
            self.pruned[reason] += fitting
        if unfit:
            self.pruned[MEMORY] += unfit

    def _too_large(self, least: float, case: Case, number: int) -> None:
        self.pruned[MEMORY] += number
        if self.without_memory is None or _score(self.objective, least, case) < _score(self.objective, *self.without_memory):
            self.without_memory = (least, case)


def _ranked(found: Sequence[Solved], objective: str) -> list[Solved]:
    """The best first; of those that differ in how operators are divided alone, the best only."""
    kept: dict[tuple[Shape, DraftOption], Solved] = {}
    for one in sorted(found, key=lambda one: _key(objective, one)):
        kept.setdefault((one.case.shape, one.case.option), one)
    return list(kept.values())


def _scores(objective: str, least: Floats, batch: Ints) -> Floats:
    """Less is better."""
    return least if objective == LATENCY else -batch / least


def _within(objective: str, other: Solved, batch: int) -> float:
    """Seconds a token with which a batch is as good as another strategy."""
    return other.seconds_per_token if objective == LATENCY else batch / other.tokens_per_second


def _score(objective: str, seconds_per_token: float, case: Case) -> float:
    """Less is better."""
    return seconds_per_token if objective == LATENCY else -case.shape.batch / seconds_per_token


def _key(objective: str, solved: Solved) -> tuple[float, float, int, int, int]:
    """Of equally good ones the faster, then the smaller comes first."""
    case = solved.case
    score = _score(objective, solved.seconds_per_token, case)
    return (score, solved.seconds_per_token, case.devices, len(case.option.placement), solved.grown.size)


def _dominates(one: Solved, other: Solved) -> bool:
    """Whether `one` is at least as good in everything."""
    return (
        one.seconds_per_token <= other.seconds_per_token
        and one.tokens_per_second >= other.tokens_per_second
        and one.case.devices <= other.case.devices
    )
