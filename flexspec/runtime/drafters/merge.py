"""Several drafters' trees as one."""

from collections.abc import Sequence
from dataclasses import replace

from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder, proposed_by


def merge_trees(root: int, proposals: Sequence[tuple[str, TokenTree]]) -> TokenTree:
    """Fold proposals into one tree that says of each node who proposed it (SpecInfer, section 3, merge-based construction).

    At a node the trials of the first drafter come first: stochastic verification needs an order that is fixed before
    anything is drawn.

    Args:
        root: the last token of the text.
        proposals: names of drafters, all different, and their trees.
    """
    if len(proposals) == 1:
        drafter, tree = proposals[0]
        if not tree.has_twins():
            return replace(tree, origins=[[origin] for origin in proposed_by(tree, drafter)])
    builder = TreeBuilder(root)
    for drafter, tree in proposals:
        builder.graft(tree, drafter)
    return builder.build()
