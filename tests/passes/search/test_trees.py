"""Expected tokens a step: the heap against all trees, and against the sum of equation 9."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from flexspec.acceptance import AcceptanceTable
from flexspec.passes.search.trees import MOST_BRANCH, MOST_DEPTH, NO_TREE, chances_of, grow_trees, tree_choices


def falling(rng: np.random.Generator, depths: int, ranks: int) -> list[list[float]]:
    """Chances that add up to at most 1 on every level and fall with rank."""
    levels = rng.dirichlet(np.ones(ranks + 1), depths)[:, :ranks]
    return [sorted(level, reverse=True) for level in levels.tolist()]


def best_by_search(levels: list[list[float]], size: int) -> float:
    """The most tokens a step that any tree of a size is expected to emit, the bonus token included."""

    @cache
    def below(depth: int, nodes: int, rank: int) -> float:
        """Of the children from `rank` on of a node at a depth, and of what is below them."""
        if not nodes or depth == len(levels) or rank == len(levels[depth]):
            return 0.0
        best = below(depth, nodes, rank + 1)
        for own in range(1, nodes + 1):
            chance = levels[depth][rank]
            best = max(best, chance * (1 + below(depth + 1, own - 1, 0)) + below(depth, nodes - own, rank + 1))
        return best

    return 1.0 + below(0, size, 0)


def test_the_heap_finds_the_best_tree_of_every_size() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        levels = falling(rng, 4, 3)
        trees = grow_trees({"a": levels}, 7)
        assert [tree.size for tree in trees] == list(range(8))
        for tree in trees:
            assert tree.expected == pytest.approx(best_by_search(levels, tree.size))
            assert sum(tree.levels.get("a", ())) == tree.size


def test_equation_9_for_a_chain() -> None:
    trees = grow_trees({"a": [[0.7], [0.6], [0.5]]}, 10)
    assert [round(tree.expected, 6) for tree in trees] == [1.0, 1.7, 2.12, 2.33]
    assert trees[3].levels == {"a": (1, 1, 1)} and trees[3].branch == 1 and trees[3].depth("a") == 3
    assert trees[0] is NO_TREE and trees[0].depth("a") == 0


def test_drafters_that_are_right_independently_of_each_other() -> None:
    """A level holds what follows unless every drafter missed: no tree emits more than that allows, and none less than the better one."""
    a, b = [[0.6, 0.2]] * 2, [[0.5, 0.1]] * 2
    both = grow_trees({"a": a, "b": b}, 4)
    assert both[1].expected == pytest.approx(1.6)
    assert both[2].expected == pytest.approx(1.6 + 0.36)  # deeper: 0.36, or b's first: 0.5 · 0.4 = 0.2
    everything = grow_trees({"a": a, "b": b}, 100)[-1]
    mass = [[sum(level) for level in levels] for levels in (a, b)]
    hit = [1 - (1 - math.prod(mass[0][: depth + 1])) * (1 - math.prod(mass[1][: depth + 1])) for depth in range(2)]
    assert everything.expected == pytest.approx(1 + sum(hit))
    for alone in (a, b):
        for merged, single in zip(both, grow_trees({"a": alone}, 4), strict=False):
            assert merged.expected >= single.expected - 1e-12


def test_every_limit_on_depth_is_a_choice_where_levels_cost_time() -> None:
    levels = [[0.9, 0.05]] * 5
    free = tree_choices({"a": levels}, [], 6)
    assert [tree.size for tree in free] == [1, 2, 3, 4, 5, 6]
    costly = tree_choices({"a": levels}, ["a"], 6)
    of_four = {tree.depth("a"): tree.expected for tree in costly if tree.size == 4}
    assert set(of_four) == {2, 3, 4} and of_four[2] < of_four[3] < of_four[4]
    assert len({(tree.size, tree.levels["a"]) for tree in costly}) == len(costly)


def test_chances_of_a_drafter_that_was_seen_and_of_one_that_was_not() -> None:
    table = AcceptanceTable()
    for number in range(2000):
        table.of("seen").record(0, 0, 1, number % 10 < 7)
    seen, unseen = chances_of(table, "seen"), chances_of(table, "unseen")
    assert len(seen) == MOST_DEPTH and {len(level) for level in seen} == {MOST_BRANCH}
    assert 0.6 < seen[0][0] < 0.72 and 0.2 < unseen[0][0] < 0.4
    for level in cases(seen, unseen):
        assert 0 <= sum(level) <= 1 + 1e-12
    overfull = AcceptanceTable()
    for rank in range(4):
        overfull.of("a").restore((-1, rank, 1), 1e6, 0.5e6)
    assert sum(chances_of(overfull, "a")[0]) == pytest.approx(1.0)


def cases(*tables: list[list[float]]) -> Iterator[list[float]]:
    for table in tables:
        yield from table
