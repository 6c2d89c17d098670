"""Runs a program of random decisions once for each outcome, so that what it emits has an exact probability."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from flexspec.runtime.distribution import Distribution

Outcome = TypeVar("Outcome", bound=Hashable)


class EnumeratedDraws:
    """Stands in for `KeyedDraws`: every decision with more than one possible result is a branch."""

    def __init__(self, prefix: list[int]) -> None:
        self._prefix = prefix
        self.branches: list[list[float]] = []
        self.taken: list[int] = []

    def bernoulli(self, probability: float) -> bool:
        """Branch on True and False, where both are possible."""
        return self._branch([probability, 1.0 - probability]) == 0

    def choice(self, distribution: Distribution) -> int:
        """Branch on every token that has a probability."""
        return int(distribution.ids[self._branch(distribution.probs.tolist())])

    def _branch(self, probabilities: list[float]) -> int:
        possible = [place for place, probability in enumerate(probabilities) if probability > 0]
        if len(possible) == 1:
            return possible[0]
        depth = len(self.taken)
        taken = self._prefix[depth] if depth < len(self._prefix) else 0
        self.branches.append([probabilities[place] for place in possible])
        self.taken.append(taken)
        return possible[taken]

    def probability(self) -> float:
        """Probability of all branches taken."""
        result = 1.0
        for taken, probabilities in zip(self.taken, self.branches, strict=True):
            result *= probabilities[taken]
        return result


def outcomes(program: Callable[[EnumeratedDraws], Outcome], *, limit: int = 20_000) -> Iterator[tuple[Outcome, float]]:
    """Every outcome of `program` with its probability; fails beyond `limit` outcomes."""
    prefix: list[int] = []
    for _ in range(limit):
        draws = EnumeratedDraws(prefix)
        outcome = program(draws)
        yield outcome, draws.probability()
        prefix = draws.taken
        while prefix and prefix[-1] + 1 == len(draws.branches[len(prefix) - 1]):
            prefix.pop()
        if not prefix:
            return
        prefix[-1] += 1
    raise AssertionError(f"more than {limit} outcomes")


def law(program: Callable[[EnumeratedDraws], Outcome], *, limit: int = 20_000) -> dict[Outcome, float]:
    """Probability of each distinct outcome of `program`."""
    result: dict[Outcome, float] = defaultdict(float)
    for outcome, probability in outcomes(program, limit=limit):
        result[outcome] += probability
    return dict(result)
