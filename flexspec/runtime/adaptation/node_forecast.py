"""How many nodes are worth verifying, where that must be settled before the trees are known."""

from collections.abc import Callable, Sequence

_RATE = 0.1
"""Weight of a new tree, once there were 1 / this many."""


class NodeForecast:
    """Remembers the chances of the nodes of past proposals, the likeliest of each tree first."""

    def __init__(self) -> None:
        self._chances: list[float] = []
        self._trees = 0

    @property
    def is_known(self) -> bool:
        """Whether there were any."""
        return self._trees > 0

    def observe(self, chances: Sequence[float]) -> None:
        """Another tree: the chances of its drafted nodes, in any order."""
        self._trees += 1
        rate = max(_RATE, 1 / self._trees)
        self._chances += [0.0] * (len(chances) - len(self._chances))
        ordered = sorted(chances, reverse=True)
        for place, mean in enumerate(self._chances):
            self._chances[place] += rate * ((ordered[place] if place < len(ordered) else 0.0) - mean)

    def size(self, rooms: Sequence[int], *, budget: int, cost: Callable[[int], float], factor: float = 1.0, least_gain: float = 0.0) -> int:
        """The most nodes of each tree with which the expected number of accepted tokens, less what they cost, is largest.

        Args:
            rooms: most drafted nodes of each tree.
            budget: most drafted nodes of all trees.
            cost: as `grow` takes it, like what follows.
        """
        best_size, best_net, gain, nodes = 0, least_gain, 0.0, 0
        free = cost(0)
        for size, chance in enumerate(self._chances, start=1):
            more = sum(room >= size for room in rooms)
            if not more or nodes + more > budget:
                break
            nodes += more
            gain += more * chance
            net = factor * gain - (cost(nodes) - free)
            if net > best_net:
                best_size, best_net = size, net
        return best_size
