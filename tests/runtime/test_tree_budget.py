import numpy as np
import pytest

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.tree_budget import clip, is_well_formed
from flexspec.tree_shape import TreeSpec, shorten

Q = Distribution(ids=np.array([1, 2]), probs=np.array([0.5, 0.5]))
TREE = TokenTree(tokens=[9, 1, 3, 2, 4], parents=[-1, 0, 1, 0, 3], draws={0: [Draw(node=1, q=Q), Draw(node=1, q=Q), Draw(node=3, q=Q)]})


@pytest.mark.parametrize(
    ("max_depth", "max_nodes", "expected"),
    [
        (3, 99, (2, 2, 1)),
        (2, 99, (2, 2)),
        (1, 99, (2,)),
        (0, 99, ()),
        (-1, 99, ()),
        (3, 9, (2, 2)),
        (3, 6, (2, 2)),
        (3, 5, (2,)),
        (3, 1, ()),
    ],
)
def test_shorten_drops_levels(max_depth, max_nodes, expected):
    assert shorten(TreeSpec(widths=(2, 2, 1)), max_depth=max_depth, max_nodes=max_nodes).widths == expected


def test_clip_keeps_a_tree_within_the_limits_as_it_is():
    assert clip(TREE, max_depth=2, max_nodes=5) is TREE


def test_clip_drops_the_lowest_level_and_renames_nodes():
    clipped = clip(TREE, max_depth=1, max_nodes=99)
    assert (clipped.tokens, clipped.parents) == ([9, 1, 2], [-1, 0, 0])
    assert [draw.node for draw in clipped.draws[0]] == [1, 1, 2]


def test_clip_counts_trials_so_that_it_cannot_depend_on_what_was_drawn():
    # 4 distinct nodes, but 5 trials: the doubled draw of token 1 must not make room for the second level.
    assert len(clip(TREE, max_depth=2, max_nodes=4).tokens) == 3
    assert clip(TREE, max_depth=2, max_nodes=2).tokens == [9]


def test_clip_forgets_trials_of_nodes_that_lost_their_children():
    tree = TokenTree(tokens=[9, 1, 2], parents=[-1, 0, 1], draws={0: [Draw(node=1, q=None)], 1: [Draw(node=2, q=None)]})
    assert clip(tree, max_depth=1, max_nodes=9).draws == {0: [Draw(node=1, q=None)]}


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [([], []), ([8], [-1]), ([9, 1], [-1]), ([9, 1], [-1, 1]), ([9, 1], [-1, -1]), ([9, 10], [-1, 0]), ([9, -1], [-1, 0]), ([9], [0])],
)
def test_trees_that_do_not_hang_together_are_recognised(tokens, parents):
    assert not is_well_formed(TokenTree(tokens=tokens, parents=parents), root=9, vocab_limit=10)


def test_well_formed_trees_are_recognised():
    assert is_well_formed(TREE, root=9, vocab_limit=10)


@pytest.mark.parametrize(
    "draws",
    [
        {0: [Draw(node=2, q=None)]},  # no child of the root
        {0: [Draw(node=3, q=None)]},
        {1: [Draw(node=0, q=None)]},
        {0: [Draw(node=1, q=Distribution(ids=np.array([4]), probs=np.ones(1)))]},  # a draw that cannot have happened
    ],
)
def test_impossible_draws_are_no_tree(draws):
    tree = TokenTree(tokens=[9, 1, 3], parents=[-1, 0, 1], draws=draws)
    assert not is_well_formed(tree, root=9, vocab_limit=10)
    assert is_well_formed(TokenTree(tokens=[9, 1, 3], parents=[-1, 0, 1], draws={0: [Draw(node=1, q=None)]}), root=9, vocab_limit=10)
