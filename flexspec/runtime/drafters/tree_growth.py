"""How the tree of a draft model grows: which nodes get children, how many, and what is proposed in the end."""

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Protocol

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.base import Chances
from flexspec.runtime.drafters.children import Brood
from flexspec.runtime.drafters.grades import grade
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.tree_shape import TreeLimits

_BEAM = 6
"""Most nodes of a level that get children in an adaptive tree: a pass over so few costs little more than over one."""
_LEAST_CHANCE = 0.01
"""Nodes less likely than this get no children: to choose those takes about so much of the time of a token."""
_LEAST_PROPOSED = 0.005
"""Nodes below the first level that are less likely than this are not proposed."""
_RATE = 0.05


class TreeGrowth(Protocol):
    """One tree, grown level by level.

    Attributes:
        builder: holds it.
    """

    builder: TreeBuilder

    @property
    def depth(self) -> int:
        """Most levels below the root."""
        ...

    @property
    def most_children(self) -> int:
        """Most children of any node."""
        ...

    @property
    def frontier(self) -> Sequence[int]:
        """The nodes that get children next."""
        ...

    @property
    def width(self) -> int:
        """Most children of a node of the frontier."""
        ...

    @property
    def gain(self) -> float:
        """Tokens that giving the frontier children is expected to add."""
        ...

    def add(self, node: int, brood: Brood) -> None:
        """The children of a node of the frontier."""
        ...

    def close_level(self, fed: Sequence[int] | None = None) -> None:
        """All of the frontier has its children: go on to those that get some themselves.

        Args:
            fed: which these are, where that was settled elsewhere, within what `limits` gives; None to choose them now.
        """
        ...

    def limits(self, depth: int) -> list[tuple[int, int]]:
        """What bounds a tree of which `depth` levels are grown elsewhere.

        Returns:
            For each level below the root that gets children: how many children of a node are looked at for it, and its most nodes.
        """
        ...

    def branches(self, depth: int) -> list[int]:
        """How many children at most the nodes of the first `depth` levels have, the root's level first."""
        ...

    def most_nodes(self, depth: int) -> int:
        """Drafted nodes of the largest tree of which `depth` levels are grown elsewhere, within what `limits` gives."""
        ...

    def build(self) -> TokenTree:
        """What is proposed."""
        ...


class StaticGrowth:
    """Every node of a level gets as many children as the widths say."""

    def __init__(self, root: int, widths: Sequence[int]) -> None:
        self.builder = TreeBuilder(root)
        self.frontier = range(1)
        self._widths = widths
        self._level = 0

    @property
    def depth(self) -> int:
        """As `TreeGrowth.depth`."""
        return len(self._widths)

    @property
    def most_children(self) -> int:
        """As `TreeGrowth.most_children`."""
        return max(self._widths)

    @property
    def width(self) -> int:
        """As `TreeGrowth.width`."""
        return self._widths[self._level]

    @property
    def gain(self) -> float:
        """As `TreeGrowth.gain`: whatever was asked for is worth it."""
        return math.inf if self.frontier else 0.0

    def add(self, node: int, brood: Brood) -> None:
        """As `TreeGrowth.add`."""
        qs: Sequence[Distribution | None] = brood.qs or [None] * len(brood.tokens)
        for token, estimate, q in zip(brood.tokens, brood.estimates, qs, strict=True):
            self.builder.add(node, token, q, grade=grade(estimate))

    def close_level(self, fed: Sequence[int] | None = None) -> None:
        """As `TreeGrowth.close_level`."""
        self._level += 1
        grown = range(self.frontier.stop, len(self.builder))
        self.frontier = grown if self._level < len(self._widths) else range(0)
        assert fed is None or list(fed) == list(self.frontier), f"{fed} were fed, and all of {self.frontier} get children"

    def limits(self, depth: int) -> list[tuple[int, int]]:
        """As `TreeGrowth.limits`."""
        return list(zip(self._widths[: depth - 1], accumulate(self._widths, mul), strict=False))

    def branches(self, depth: int) -> list[int]:
        """As `TreeGrowth.branches`."""
        return list(self._widths[:depth])

    def most_nodes(self, depth: int) -> int:
        """As `TreeGrowth.most_nodes`."""
        return sum(accumulate(self._widths[:depth], mul))

    def build(self) -> TokenTree:
        """As `TreeGrowth.build`."""
        return self.builder.build()


class HitRate:
    """How often one of a node's children follows it, lately, by the chances of nodes that growth goes by."""

    def __init__(self) -> None:
        self.value = 1.0

    def observe(self, chance: float) -> None:
        """The chance at another node."""
        self.value += _RATE * (min(chance, 1.0) - self.value)


class AdaptiveGrowth:
    """The likeliest nodes of a level get children, and the likeliest nodes of all are proposed.

    A node's chance is that of its whole path, as past acceptance has it.

    Args:
        root: the last token of the text.
        limits: of the tree.
        depth: most levels, at most the limits'.
        room: most nodes that get children, the root not counted.
        chances: of a node, given its parent; None for the drafter's own estimates.
        hit_rate: the drafter's; it learns.
    """

    def __init__(self, root: int, limits: TreeLimits, *, depth: int, room: int, chances: Chances | None, hit_rate: HitRate) -> None:
        self.builder = TreeBuilder(root)
        self.frontier: Sequence[int] = [0]
        self._limits = limits
        self._depth = depth
        self._room = room
        self._known = chances
        self._hit_rate = hit_rate
        self._level = 0
        self._num_seen = 1  # nodes in the builder when the last level was closed
        self._chances = [1.0]  # of each node in the builder
        self._grades = [0]  # likewise
        self._best: list[tuple[float, int]] = []  # heap of (chance, -node): of equals the later one goes first
        self._proposed = {0}

    @property
    def depth(self) -> int:
        """As `TreeGrowth.depth`."""
        return self._depth

    @property
    def most_children(self) -> int:
        """As `TreeGrowth.most_children`."""
        return self.width

    @property
    def width(self) -> int:
        """As `TreeGrowth.width`."""
        return min(self._limits.branch, self._limits.budget)

    @property
    def gain(self) -> float:
        """As `TreeGrowth.gain`."""
        return sum(self._chances[node] for node in self.frontier) * self._hit_rate.value

    def add(self, node: int, brood: Brood) -> None:
        """As `TreeGrowth.add`."""
        parent, at_most, total = self._chances[node], 1.0, 0.0
        for rank, (token, estimate) in enumerate(zip(brood.tokens, brood.estimates, strict=True)):
            degree = grade(estimate)
            chance = estimate if self._known is None else self._known.chance(degree, rank, self._level + 1)
            # No child is taken without those before it, so that a node's rank in the tree is its rank here.
            at_most = min(at_most, chance)
            total += at_most
            if self._is_worse_than_all(parent * at_most):
                break
            self._propose(self.builder.add(node, token, grade=degree), parent * at_most, degree)
        self._hit_rate.observe(total)

    def close_level(self, fed: Sequence[int] | None = None) -> None:
        """As `TreeGrowth.close_level`; of nodes that were fed, the unlikely ones get no children either."""
        self._level += 1
        if self._level == self._depth:
            self.frontier = ()
            return
        grown, self._num_seen = range(self._num_seen, len(self.builder)), len(self.builder)
        likely = [node for node in (grown if fed is None else fed) if node in self._proposed and self._chances[node] >= _LEAST_CHANCE]
        likely.sort(key=lambda node: -self._chances[node])
        self.frontier = likely[: _most_fed(self._room, self._depth - self._level - 1)] if fed is None else likely
        self._room -= len(self.frontier)

    def limits(self, depth: int) -> list[tuple[int, int]]:
        """As `TreeGrowth.limits`."""
        found: list[tuple[int, int]] = []
        room, count = self._room, 1
        for level in range(1, depth):
            count = min(count * self.width, _most_fed(room, depth - level - 1))
            if not count:
                break
            found.append((self.width, count))
            room -= count
        return found

    def branches(self, depth: int) -> list[int]:
        """As `TreeGrowth.branches`."""
        return [self.width] * depth

    def most_nodes(self, depth: int) -> int:
        """As `TreeGrowth.most_nodes`."""
        fed = 1 + sum(count for _, count in self.limits(depth))
        return min(fed * self.width, self._limits.budget)

    def build(self) -> TokenTree:
        """As `TreeGrowth.build`."""
        if len(self._proposed) == len(self.builder):
            return self.builder.build()
        chosen, handles = TreeBuilder(self.builder.tokens[0]), {0: 0}
        for node in sorted(self._proposed - {0}):
            parent = handles[self.builder.parents[node]]
            handles[node] = chosen.add(parent, self.builder.tokens[node], grade=self._grades[node])
        return chosen.build()

    def _is_worse_than_all(self, chance: float) -> bool:
        if self._level and chance < _LEAST_PROPOSED:
            return True
        return len(self._best) == self._limits.budget and chance <= self._best[0][0]

    def _propose(self, node: int, chance: float, degree: int) -> None:
        self._chances.append(chance)
        self._grades.append(degree)
        self._proposed.add(node)
        if len(self._best) < self._limits.budget:
            heapq.heappush(self._best, (chance, -node))
        else:
            self._proposed.discard(-heapq.heapreplace(self._best, (chance, -node))[1])


def _most_fed(room: int, num_below: int) -> int:
    """Nodes of a level that get children, where so many levels below it that do need room for one node each."""
    return min(_BEAM, max(room - num_below, 1), room)
