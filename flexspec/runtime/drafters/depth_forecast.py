"""How deep trees are worth growing, where that must be settled before they grow."""

from collections.abc import Sequence

_RATE = 0.1
"""Weight of a new tree, once there were 1 / this many."""
_DEPTHS = (1, 2, 3, 4, 6, 8, 12)
"""Depths are rounded up to these and multiples of the last, so that few are ever captured."""


class DepthForecast:
    """Remembers what the levels of past trees were expected to add; it never looks further than one level past what it has seen."""

    def __init__(self) -> None:
        self._gains: list[float] = []  # tokens of a tree, of giving children to the nodes of level 1, 2, …
        self._counts: list[int] = []

    def observe(self, gains: Sequence[float]) -> None:
        """Another tree: what giving children to each of its levels was expected to add, from level 1 on."""
        for level, gain in enumerate(gains):
            if level == len(self._gains):
                self._gains.append(0.0)
                self._counts.append(0)
            self._counts[level] += 1
            self._gains[level] += max(_RATE, 1 / self._counts[level]) * (gain - self._gains[level])

    def depth(self, trees: int, worth: float, most: int) -> int:
        """Levels of which each is expected to add `worth` tokens to as many trees, 1 to `most`."""
        depth = 1
        while depth < most and (worth <= 0 or (depth <= len(self._gains) and trees * self._gains[depth - 1] >= worth)):
            depth += 1
        rounded = next((allowed for allowed in _DEPTHS if allowed >= depth), -(-depth // _DEPTHS[-1]) * _DEPTHS[-1])
        return min(rounded, most)
