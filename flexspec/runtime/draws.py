"""The one interface through which drafters and verifiers draw, so that an enumerator can stand in for chance."""

from typing import Protocol

import numpy as np

from flexspec.runtime.distribution import Distribution, Float64
from flexspec.runtime.randomness import KeyedNoise, to_uniform


class Draws(Protocol):
    """A sequence of random decisions."""

    def bernoulli(self, probability: float) -> bool:
        """True with the given probability: never at 0, always at 1."""
        ...

    def choice(self, distribution: Distribution) -> int:
        """A token drawn from `distribution`."""
        ...


class KeyedDraws:
    """Decisions that are a function of (seed, completion, index, stream) and of their order alone."""

    def __init__(self, noise: KeyedNoise, *, index: int, stream: int) -> None:
        self._noise = noise
        self._index = index
        self._stream = stream
        self._used = 0

    def bernoulli(self, probability: float) -> bool:
        """True with the given probability: never at 0, always at 1."""
        return self._uniform() < probability

    def choice(self, distribution: Distribution) -> int:
        """A token drawn from `distribution`."""
        cumulated = np.cumsum(distribution.probs)
        place = int(np.searchsorted(cumulated, self._uniform() * cumulated[-1], side="right"))
        return int(distribution.ids[min(place, len(cumulated) - 1)])

    def uniforms(self, count: int) -> Float64:
        """The numbers behind the next `count` decisions, which are thereby made elsewhere, in their order."""
        raw = self._noise.bits(self._used, count, index=self._index, stream=self._stream)
        self._used += count
        return to_uniform(raw)

    def _uniform(self) -> float:
        return float(self.uniforms(1)[0])
