"""The trees that are chosen are the best there are, by brute force over all subtrees."""

import itertools

import numpy as np
import pytest

from flexspec.acceptance import AcceptanceTable
from flexspec.runtime.adaptation.growth import grow, path_chances
from flexspec.runtime.token_tree import Origin, TokenTree


def random_tree(random, count, name="a"):
    parents = [-1, *(int(random.integers(node)) for node in range(1, count))]
    grades = [int(random.integers(3)) for _ in range(count)]
    ranks = [parents[:node].count(parents[node]) for node in range(count)]
    origins = [[Origin(name, rank, grade)] if node else [] for node, (rank, grade) in enumerate(zip(ranks, grades, strict=True))]
    return TokenTree(tokens=list(range(count)), parents=parents, origins=origins)


def random_chances(random, tree):
    chances = [1.0]
    for node in range(1, len(tree.tokens)):
        chances.append(chances[tree.parents[node]] * float(random.uniform(0.0, 1.0)))
    return chances


def subtrees(tree):
    nodes = range(1, len(tree.tokens))
    for size in range(len(nodes) + 1):
        for kept in itertools.combinations(nodes, size):
            if all(tree.parents[node] in (0, *kept) for node in kept):
                yield kept


def tokens(trees, _expected=0.0):
    return [list(tree.tokens) for tree in trees]


@pytest.mark.parametrize("seed", range(20))
def test_no_subtrees_of_a_batch_are_worth_more(seed):
    random = np.random.default_rng(seed)
    trees = [random_tree(random, 6), random_tree(random, 5)]
    chances = [random_chances(random, tree) for tree in trees]
    steps = np.cumsum(random.uniform(0.0, 0.5, 12))  # neither convex nor concave
    room, budget = int(random.integers(1, 6)), int(random.integers(0, 9))

    def net(kept):
        size = sum(map(len, kept))
        if size > budget or any(len(nodes) > room for nodes in kept):
            return -1.0
        return sum(chances[place][node] for place, nodes in enumerate(kept) for node in nodes) - (steps[size] - steps[0])

    best = max(net(kept) for kept in itertools.product(*(list(subtrees(tree)) for tree in trees)))
    chosen, expected = grow(trees, chances, room=room, budget=budget, cost=lambda nodes: float(steps[nodes]))
    kept = [[token for token in tree.tokens if token] for tree in chosen]  # a node's token is its number here
    assert net(kept) == pytest.approx(best)
    assert expected == pytest.approx(sum(chances[place][node] for place, nodes in enumerate(kept) for node in nodes))


def test_sizes_nest():
    random = np.random.default_rng(3)
    tree = random_tree(random, 30)
    chances = random_chances(random, tree)
    before = set()
    for budget in range(30):
        (chosen,), _ = grow([tree], [chances], room=30, budget=budget, cost=lambda nodes: 0.0)
        now = set(chosen.tokens)
        assert before <= now and len(now) == budget + 1
        before = now


def test_one_budget_goes_where_it_pays():
    chain = TokenTree(tokens=[0, 1, 2, 3], parents=[-1, 0, 1, 2])
    sure, vague = [1.0, 0.9, 0.8, 0.7], [1.0, 0.3, 0.2, 0.1]
    chosen, _ = grow([chain, chain], [sure, vague], room=3, budget=4, cost=lambda nodes: 0.0)
    assert tokens(chosen) == [[0, 1, 2, 3], [0, 1]]


def test_nothing_is_drafted_where_a_node_costs_more_than_it_brings():
    chain = TokenTree(tokens=[0, 1], parents=[-1, 0])
    assert tokens(*grow([chain], [[1.0, 0.2]], room=1, budget=1, cost=lambda nodes: 0.25 * nodes)) == [[0]]
    assert tokens(*grow([chain], [[1.0, 0.3]], room=1, budget=1, cost=lambda nodes: 0.25 * nodes)) == [[0, 1]]
    assert tokens(*grow([chain], [[1.0, 0.3]], room=1, budget=1, cost=lambda nodes: 0.25 * nodes, least_gain=0.1)) == [[0]]


def test_a_step_in_the_cost_is_looked_across():
    """One node costs as much as four: none or all."""
    chain = TokenTree(tokens=[0, 1, 2, 3, 4], parents=[-1, 0, 1, 2, 3])
    chosen, _ = grow([chain], [[1.0, 0.5, 0.4, 0.3, 0.2]], room=4, budget=4, cost=lambda nodes: 1.0 if nodes else 0.0)
    assert tokens(chosen) == [[0, 1, 2, 3, 4]]


def test_impossible_nodes_are_left_out():
    tree = TokenTree(tokens=[0, 1, 2], parents=[-1, 0, 1])
    assert tokens(*grow([tree], [[1.0, 0.5, 0.0]], room=2, budget=2, cost=lambda nodes: 0.0)) == [[0, 1]]


def test_a_path_chance_is_the_product_of_the_best_origins_down_to_the_depth_allowed():
    table = AcceptanceTable()
    for trial in range(200):
        table.of("good").record(1, 0, 1, trial % 10 > 0)
        table.of("bad").record(0, 2, 1, trial % 10 == 0)
        table.of("bad").record(0, 0, 2, trial % 2 == 0)
    tree = TokenTree(
        tokens=[0, 1, 2, 3],
        parents=[-1, 0, 1, 2],
        origins=[[], [Origin("bad", 2, 0), Origin("good", 0, 1)], [Origin("bad", 0, 0)], [Origin("bad", 0, 0)]],
    )
    chances = path_chances(tree, table, 2)
    assert chances[0] == 1 and 0.85 < chances[1] < 0.9 and 0.4 < chances[2] < 0.45 and chances[3] == 0


def test_chances_count_as_much_as_they_turned_out_to_be_worth():
    chain = TokenTree(tokens=[0, 1, 2], parents=[-1, 0, 1])
    chances = [[1.0, 0.5, 0.2]]
    sizes = {}
    for factor in (0.5, 1.0, 2.0):
        (chosen,), expected = grow([chain], chances, room=2, budget=2, cost=lambda nodes: 0.3 * nodes, factor=factor)
        sizes[factor] = chosen.num_drafted
        assert expected == pytest.approx(sum(chances[0][1 : 1 + chosen.num_drafted])), "not by the factor"
    assert sizes == {0.5: 0, 1.0: 1, 2.0: 2}
