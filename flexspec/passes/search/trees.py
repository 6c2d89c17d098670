"""How many tokens a step of a tree of any size is expected to emit: equation 9, by the best-first heap.

Chances are P(a node is accepted | its parent is), marginal over its siblings, so those of one depth add up to 1 at most. The
likeliest node comes first; where acceptance does not rise with depth or rank, the first n nodes are the best tree of n for every n.
Several drafters draft trees of their own that are merged; with hits that are independent of each other, a level holds what
follows unless every drafter missed, so a drafter's node counts for its chance times that of all others' misses there.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from flexspec.acceptance import AcceptanceTable

MOST_DEPTH = 16
MOST_BRANCH = 8
"""Children of one drafter at a node: what the acceptance tables tell apart."""
_ALL_GRADES = -1


@dataclass(frozen=True, kw_only=True)
class GrownTree:
    """A tree of the likeliest nodes.

    Attributes:
        size: drafted nodes.
        expected: tokens that a step emits, the bonus token included.
        levels: nodes of each drafter, level by level, as far as it has any.
        branch: most children that a drafter gives a node.
    """

    size: int
    expected: float
    levels: Mapping[str, tuple[int, ...]]
    branch: int

    def depth(self, drafter: str) -> int:
        """Levels that a drafter drafts."""
        return len(self.levels.get(drafter, ()))


NO_TREE = GrownTree(size=0, expected=1.0, levels={}, branch=0)


@dataclass(slots=True)
class _Growth:
    """One drafter's tree so far."""

    chances: Sequence[Sequence[float]]  # by depth, then from the likeliest child on
    mass: list[float]  # chance that a level holds what follows
    levels: list[int]


def grow_trees(chances: Mapping[str, Sequence[Sequence[float]]], most_nodes: int) -> list[GrownTree]:
    """The trees of 0, 1, … nodes, each with one node more; at most `most_nodes`, fewer if nothing else could be accepted.

    Args:
        chances: of each drafter, by depth (level 1 first) and rank; its length is the most levels of that drafter.
    """
    growths = {name: _Growth(_in_order(levels), [0.0] * len(levels), []) for name, levels in chances.items()}
    order = count()
    # Entries: minus the gain when last looked at, a tie-breaker, drafter, depth, rank, product of the chances above.
    heap: list[tuple[float, int, str, int, int, float]] = []

    def push(name: str, depth: int, rank: int, above: float) -> None:
        levels = growths[name].chances
        if depth < len(levels) and rank < len(levels[depth]) and above * levels[depth][rank] > 0:
            heapq.heappush(heap, (-_gain(growths, name, depth, above * levels[depth][rank]), next(order), name, depth, rank, above))

    for name in growths:
        push(name, 0, 0, 1.0)
    trees, expected, branch = [NO_TREE], 1.0, 0
    while heap and len(trees) <= most_nodes:
        promised, _, name, depth, rank, above = heapq.heappop(heap)
        chance = above * growths[name].chances[depth][rank]
        gain = _gain(growths, name, depth, chance)
        if heap and gain < -promised and gain < -heap[0][0]:  # another drafter has covered a part of it since
            heapq.heappush(heap, (-gain, next(order), name, depth, rank, above))
            continue
        growth = growths[name]
        growth.mass[depth] += chance
        growth.levels += [0] * (depth + 1 - len(growth.levels))
        growth.levels[depth] += 1
        expected, branch = expected + gain, max(branch, rank + 1)
        levels = {other: tuple(one.levels) for other, one in growths.items() if one.levels}
        trees.append(GrownTree(size=len(trees), expected=expected, levels=levels, branch=branch))
        push(name, depth + 1, 0, chance)
        push(name, depth, rank + 1, above)
    return trees


def tree_choices(
    chances: Mapping[str, Sequence[Sequence[float]]], models: Sequence[str], most_nodes: int, *, most_depth: int = MOST_DEPTH
) -> list[GrownTree]:
    """The trees worth comparing, of every size and with every limit on the levels of the drafters that are models.

    Args:
        chances: as `grow_trees` takes them.
        models: of the drafters, those whose levels take passes; with none of them no limit is tried.
        most_nodes: of a tree.
        most_depth: largest limit.
    """
    found: dict[tuple[int, tuple[tuple[int, ...], ...]], GrownTree] = {}
    for limit in range(1, most_depth + 1) if models else (most_depth,):
        limited = {name: levels[: limit if name in models else most_depth] for name, levels in chances.items()}
        trees = grow_trees(limited, most_nodes)[1:]
        for tree in trees:
            found.setdefault((tree.size, tuple(tree.levels.get(name, ()) for name in models)), tree)
        if all(tree.depth(name) < limit for tree in trees for name in models):
            break  # no tree is as deep as allowed
    return list(found.values())


def chances_of(acceptance: AcceptanceTable, drafter: str) -> list[list[float]]:
    """What a table says of a drafter, by depth and rank; where the chances of a depth add up to more than 1, they are scaled to it."""
    part = acceptance.of(drafter)
    levels = [[part.chance(_ALL_GRADES, rank, depth) for rank in range(MOST_BRANCH)] for depth in range(1, MOST_DEPTH + 1)]
    return [[chance / max(1.0, sum(level)) for chance in level] for level in levels]


def _in_order(levels: Sequence[Sequence[float]]) -> list[list[float]]:
    return [sorted(level, reverse=True) for level in levels]


def _gain(growths: Mapping[str, _Growth], name: str, depth: int, chance: float) -> float:
    """Tokens a step that a node adds."""
    others = (max(1.0 - one.mass[depth], 0.0) for other, one in growths.items() if other != name and depth < len(one.mass))
    return chance * math.prod(others)
