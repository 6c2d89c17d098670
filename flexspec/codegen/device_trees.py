"""Draft trees on the device that grew them: the host fixes how many nodes of each are verified, and sees them afterwards."""

from dataclasses import dataclass

import torch

TOKEN, PARENT, DEPTH, CHILD, BITS = range(5)
"""Columns of a table of nodes.

TOKEN: its token. PARENT: its parent's number in the tree, -1 for padding; the root's is 0. DEPTH: its distance from the root, 0 for
padding. CHILD: which of all children that `GrowthPlan.num_children` gave the nodes that the draft model ran on, in the order of the levels,
it is; -1 for padding. From BITS on: the words of its bit row, in which bit i stands for the tree's node i; zeros for padding.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class GrownRows:
    """Tokens of a batch that are nodes of such trees, or padding that must touch nothing.

    The host's batch gives each of them the slot that it has if it is a node, its root's position, and the number of slots before the
    tree as its context; the roots' bit rows hold the roots' own bits.

    Attributes:
        rows: int32 [n, BITS + words], on the device, of the tables of nodes.
        targets: int64 [n], on the device, the tokens' places in the batch, which are those of their logits too.
    """

    rows: torch.Tensor
    targets: torch.Tensor

    def tokens_and_parents(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a walk must know of the first `count` tokens of the batch, int32 [count] each: nobody asks for the roots' tokens."""
        tokens = self.rows.new_zeros(count).index_copy_(0, self.targets, self.rows[:, TOKEN])
        parents = self.rows.new_full((count,), -1).index_copy_(0, self.targets, self.rows[:, PARENT])
        return tokens, parents
