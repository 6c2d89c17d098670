"""Adaptive trees hold the likeliest paths, and static ones what was asked for."""

import itertools

import numpy as np
import pytest

from flexspec.runtime.drafters.children import Brood
from flexspec.runtime.drafters.tree_growth import AdaptiveGrowth, HitRate, StaticGrowth
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeLimits


def children(*estimates: float) -> Brood:
    return Brood(range(len(estimates)), estimates)


def growth(limits: TreeLimits, *, room: int = 100, chances=None) -> AdaptiveGrowth:
    return AdaptiveGrowth(9, limits, depth=limits.depth, room=room, chances=chances, hit_rate=HitRate())


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree.tokens)):
        found.append((*found[tree.parents[node]], tree.tokens[node]))
    return set(found[1:])


def grow(tree: AdaptiveGrowth, estimates) -> TokenTree:
    """Give every node of each frontier the children `estimates(path)`, until none is left."""
    known = {0: ()}
    while tree.frontier:
        for node in tree.frontier:
            if node:
                known[node] = (*known[tree.builder.parents[node]], tree.builder.tokens[node])
            tree.add(node, estimates(known[node]))
        tree.close_level()
    return tree.build()


def test_static_trees_fill_their_widths_and_say_how_sure_they_are() -> None:
    tree = StaticGrowth(9, (2, 1))
    tree.add(0, children(0.9, 0.05))
    tree.close_level()
    assert list(tree.frontier) == [1, 2] and tree.width == 1 and tree.gain == float("inf")
    tree.add(1, children(0.5))
    tree.add(2, children(0.99))
    tree.close_level()
    assert not tree.frontier and tree.gain == 0
    built = tree.build()
    assert built.parents == [-1, 0, 1, 0, 3]
    assert list(built.grades) == [0, 5, 4, 1, 7]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9, 14])
def test_the_best_paths_of_all_are_proposed(budget: int) -> None:
    rng = np.random.default_rng(budget)
    shares = {
        path: sorted(rng.dirichlet([1, 1, 1]), reverse=True) for depth in range(3) for path in itertools.product(range(3), repeat=depth)
    }
    chances = {(): 1.0}
    for path, its_shares in shares.items():
        for token, share in enumerate(its_shares):
            chances[(*path, token)] = chances[path] * share
    del chances[()]
    tree = grow(growth(TreeLimits(depth=3, branch=3, budget=budget)), lambda path: children(*shares[path]))
    # Nodes below a chance of 0.005 are out, and at most 6 of a level are expanded: with so few nodes neither matters.
    assert paths(tree) == set(sorted(chances, key=lambda path: -chances[path])[:budget])
    assert tree.num_drafted == budget


def test_past_acceptance_decides_and_ranks_have_no_gaps() -> None:
    class Known:
        def chance(self, grade: int, rank: int, depth: int) -> float:
            return [0.1, 0.5, 0.2][rank]  # the second is likelier than the first, but does not come without it

    tree = growth(TreeLimits(depth=1, branch=3, budget=2), chances=Known())
    tree.add(0, children(0.6, 0.3, 0.1))
    tree.close_level()
    assert paths(tree.build()) == {(0,), (1,)}


def test_unlikely_nodes_are_proposed_on_the_first_level_only_and_get_no_children() -> None:
    tree = growth(TreeLimits(depth=4, branch=2, budget=8))
    tree.add(0, children(0.99, 0.004))
    tree.close_level()
    assert list(tree.frontier) == [1]
    tree.add(1, children(0.98, 0.004))
    tree.close_level()
    assert list(tree.frontier) == [3]
    assert paths(tree.build()) == {(0,), (1,), (0, 0)}


@pytest.mark.parametrize(("depth", "expected"), [(2, [4, 0]), (3, [4, 1, 0]), (4, [3, 1, 1, 0]), (9, [1, 1, 1, 1, 1, 0])])
def test_no_more_nodes_get_children_than_there_is_room_for(depth: int, expected: list[int]) -> None:
    tree = growth(TreeLimits(depth=depth, branch=4, budget=64), room=5)
    sizes = []
    while tree.frontier:
        for node in tree.frontier:
            tree.add(node, children(0.5, 0.5, 0.5, 0.5))
        tree.close_level()
        sizes.append(len(tree.frontier))
    assert sizes == expected


def test_the_gain_of_a_level_is_what_its_children_have_brought_lately() -> None:
    hits = HitRate()
    gains = []
    for _ in range(100):
        tree = AdaptiveGrowth(9, TreeLimits(depth=3, branch=2, budget=8), depth=3, room=8, chances=None, hit_rate=hits)
        tree.add(0, children(0.2, 0.1))
        tree.close_level()
        gains.append(tree.gain)
    assert gains[0] > 0.28 and abs(gains[-1] - 0.3 * 0.3) < 0.01
