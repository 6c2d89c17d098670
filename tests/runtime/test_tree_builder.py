import pytest

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from oracles.exactness import to_distribution

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
    assert trials(tree, 0) == [(1, None), (2, None)]
    assert trials(tree, 4) == [(5, None)]


def test_two_draws_of_a_token_are_one_node_and_two_trials() -> None:
    builder = TreeBuilder(0)
    assert builder.add(0, 2, Q) == builder.add(0, 2, Q) == 1
    builder.add(0, 1, Q)
    tree = builder.build()
    assert list(tree.tokens) == [0, 2, 1]
    assert trials(tree, 0) == [(2, Q), (2, Q), (1, Q)]
    assert (builder.num_children(0), builder.child(0, 1), builder.child(1, 0)) == (2, 2, None)


def test_grafting_folds_shared_paths_and_keeps_the_order_of_trials() -> None:
    builder = TreeBuilder(0)
    builder.add(builder.add(0, 1, Q), 2, Q)
    other = TreeBuilder(0)
    other.add(0, 3)
    node = other.add(0, 1)
    other.add(node, 2)
    other.add(node, 4)
    builder.graft(other.build(), "b")
    tree = builder.build()
    assert list(tree.tokens) == [0, 1, 2, 4, 3]
    assert list(tree.parents) == [-1, 0, 1, 1, 0]
    assert trials(tree, 0) == [(1, Q), (3, None), (1, None)]
    assert trials(tree, 1) == [(2, Q), (2, None), (4, None)]


def test_a_tree_without_a_record_of_draws_can_be_grafted() -> None:
    builder = TreeBuilder(0)
    builder.graft(TokenTree(tokens=[0, 1, 2], parents=[-1, 0, 1]), "a")
    assert list(builder.build().tokens) == [0, 1, 2]
    assert [trials(builder.build(), node) for node in (0, 1)] == [[(1, None)], [(2, None)]], "its children count as chosen"


def test_trees_of_different_roots_do_not_merge() -> None:
    with pytest.raises(AssertionError, match="different roots"):
        TreeBuilder(0).graft(TokenTree.root(1), "a")
