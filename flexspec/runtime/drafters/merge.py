"""Several drafters' trees as one."""

from collections.abc import Sequence

from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder


def merge_trees(root: int, proposals: Sequence[tuple[str, TokenTree]]) -> TokenTree:
    """Fold proposals into one tree that says of each node who proposed it (SpecInfer, section 3, merge-based construction).

    At a node the trials of the first drafter come first: stochastic verification needs an order that is fixed before
    anything is drawn.

    Args:
        root: the last token of the text.
        proposals: names of drafters, all different, and their trees.
    """
    builder = TreeBuilder(root)
    for drafter, tree in proposals:
        builder.graft(tree, drafter)
    return builder.build()
