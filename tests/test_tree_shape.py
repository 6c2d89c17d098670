import pytest

from flexspec.errors import UsageError
from flexspec.tree_shape import PLAIN, TreeLimits, TreeSpec, parse_tree, shorten


@pytest.mark.parametrize(
    ("given", "tree"),
    [
        ("auto", TreeLimits()),
        ([2, 2, 1], TreeSpec(widths=(2, 2, 1))),
        ("2, 2,1", TreeSpec(widths=(2, 2, 1))),
        ([], PLAIN),
        ({"depth": 8}, TreeLimits(depth=8)),
        ({"depth": 8, "branch": 2, "budget": 16}, TreeLimits(depth=8, branch=2, budget=16)),
        ("depth=8, branch=2,budget=16", TreeLimits(depth=8, branch=2, budget=16)),
        ("budget=5", TreeLimits(budget=5)),
        (TreeLimits(depth=1), TreeLimits(depth=1)),
        (TreeSpec(widths=(1,)), TreeSpec(widths=(1,))),
    ],
)
def test_all_ways_to_say_a_tree(given, tree):
    assert parse_tree(given) == tree


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wide", "tree='wide' is not allowed: give 'auto', widths such as 2,2,1, or limits such as depth=8"),
        ("2,2,", "tree='2,2,' is not allowed"),
        ("depth=8,2", "tree='depth=8,2' is not allowed"),
        ("depth=x", "tree='depth=x' is not allowed"),
        ("height=3", "'height' is no limit of a tree: give some of depth, branch, budget"),
        ({"height": 3}, "'height' is no limit of a tree"),
        ({"depth": 0}, "tree depth=0 is not allowed: give a whole number from 1 to 1024"),
        ({"branch": -1}, "tree branch=-1"),
        ({"budget": 1025}, "tree budget=1025"),
        ({"budget": 2.5}, "tree budget=2.5"),
        ({"budget": True}, "tree budget=True"),
        ("depth=0", "tree depth=0"),
        ([2, 0], r"tree=\[2, 0\]: every width"),
        ([True], "every width"),
        ([40, 40], "1640 nodes; at most 1024"),
        (4, "tree=4 is not allowed"),
    ],
)
def test_what_is_no_tree_is_named(given, message):
    with pytest.raises(UsageError, match=message):
        parse_tree(given)


def test_limits_within_limits():
    tree = TreeLimits(depth=8, branch=4, budget=20)
    assert shorten(tree, max_depth=3, max_nodes=64) == TreeLimits(depth=3, branch=4, budget=20)
    assert shorten(tree, max_depth=30, max_nodes=5) == TreeLimits(depth=8, branch=4, budget=5)
    assert shorten(tree, max_depth=0, max_nodes=5) == shorten(tree, max_depth=5, max_nodes=0) == PLAIN


@pytest.mark.parametrize("depth", [1, 3, 16])
@pytest.mark.parametrize("branch", [1, 4, 9])
@pytest.mark.parametrize("budget", [1, 3, 8, 32])
def test_a_drafter_that_fills_widths_stays_within_the_limits(depth, branch, budget):
    tree = TreeLimits(depth=depth, branch=branch, budget=budget)
    static = TreeSpec(widths=tree.widths)
    assert 1 <= static.depth <= depth and max(static.widths) <= branch and static.num_nodes <= budget == tree.num_nodes


def test_trees_say_what_they_are():
    assert str(TreeSpec(widths=(2, 2, 1))) == "⟨2,2,1⟩" and str(PLAIN) == "none, plain decoding"
    assert str(TreeLimits(depth=8, branch=2, budget=16)) == "adaptive, at most 8 deep, 2 children a node, 16 nodes"
