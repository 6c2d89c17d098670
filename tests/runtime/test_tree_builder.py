from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from oracles.proposals import to_distribution

Q = to_distribution([1.0, 1.0, 1.0])


def trials(tree: TokenTree, node: int) -> list[tuple[int, Distribution | None]]:
    return [(tree.tokens[draw.node], draw.q) for draw in tree.draws.get(node, [])]


def test_the_tree_is_laid_out_in_preorder() -> None:
    builder = TreeBuilder(7)
    first, second = builder.add(0, 1), builder.add(0, 2)
    builder.add(second, 5)
    below = builder.add(first, 3)
    builder.add(below, 4)
    tree = builder.build()
    assert list(tree.tokens) == [7, 1, 3, 4, 2, 5]
    assert list(tree.parents) == [-1, 0, 1, 2, 0, 4]
    assert not tree.draws, "nothing was drawn"


def test_a_child_chosen_beside_drawn_ones_is_a_trial_in_its_turn() -> None:
    builder = TreeBuilder(7)
    builder.add(0, 1)
    builder.add(0, 2, Q)
    builder.add(0, 0)
    assert trials(builder.build(), 0) == [(1, None), (2, Q), (0, None)]


def test_grades_are_kept_with_their_nodes() -> None:
    builder = TreeBuilder(7)
    builder.add(0, 1, grade=3)
    builder.add(builder.add(0, 2, grade=4), 5, grade=5)
    builder.add(1, 6, grade=6)
    tree = builder.build()
    assert (list(tree.tokens), list(tree.grades)) == ([7, 1, 6, 2, 5], [0, 3, 6, 4, 5])


def test_two_draws_of_a_token_are_one_node_and_two_trials() -> None:
    builder = TreeBuilder(0)
    assert builder.add(0, 2, Q) == builder.add(0, 2, Q) == 1
    builder.add(0, 1, Q)
    tree = builder.build()
    assert list(tree.tokens) == [0, 2, 1]
    assert trials(tree, 0) == [(2, Q), (2, Q), (1, Q)]
    assert (builder.num_children(0), builder.child(0, 1), builder.child(1, 0)) == (2, 2, None)
