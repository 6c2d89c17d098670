"""How many nodes are worth verifying, by those of past proposals."""

import pytest

from flexspec.runtime.adaptation.growth import grow
from flexspec.runtime.adaptation.node_forecast import NodeForecast
from flexspec.runtime.token_tree import TokenTree


def forecast(*trees):
    known = NodeForecast()
    for chances in trees:
        known.observe(chances)
    return known


def test_it_knows_nothing_before_the_first_tree():
    assert not forecast().is_known and forecast([0.5]).is_known
    assert forecast().size([5], budget=5, cost=lambda nodes: 0.0) == 0


@pytest.mark.parametrize("price", [0.0, 0.1, 0.2, 0.3, 0.45, 0.9])
@pytest.mark.parametrize("num_trees", [1, 3])
def test_of_trees_that_are_always_alike_it_says_what_best_first_growth_takes(price, num_trees):
    chances = [0.2, 0.8, 0.05, 0.4]  # of children of the root
    known = forecast(*[chances] * 20)
    trees = [TokenTree(tokens=range(5), parents=[-1, 0, 0, 0, 0])] * num_trees
    grown, _ = grow(trees, [[1.0, *chances]] * num_trees, room=4, budget=100, cost=lambda nodes: price * nodes)
    assert known.size([4] * num_trees, budget=100, cost=lambda nodes: price * nodes) == grown[0].num_drafted


def test_means_are_those_of_the_likeliest_the_second_and_so_on():
    known = forecast([0.9, 0.1], [0.3, 0.5, 0.2])
    sizes = [known.size([3], budget=3, cost=lambda nodes, price=price: price * nodes) for price in (0.05, 0.15, 0.6, 0.8)]
    assert sizes == [3, 2, 1, 0], "0.7, 0.2 and 0.1 on the average"


def test_it_stays_within_rooms_and_budget_and_asks_for_a_least_gain():
    known = forecast([0.9, 0.8, 0.7])
    assert known.size([3, 1, 0], budget=100, cost=lambda nodes: 0.0) == 3
    assert known.size([3, 3], budget=5, cost=lambda nodes: 0.0) == 2
    assert known.size([3], budget=3, cost=lambda nodes: 0.0, least_gain=2.5) == 0
    assert known.size([3], budget=3, cost=lambda nodes: 0.6 * nodes, factor=0.7) == 1, "expectations came true to 7 tenths"
