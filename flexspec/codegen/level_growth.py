"""Growing the trees of a draft model on its own device: the host sets sizes, and fetches in the end what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Int32, Int64
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.tree_walk import Float64, UInt64

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class GrowthPlan:
    """R trees behind texts that a model was fed, how large they may be, and how each of them chooses tokens.

    Every node that the model runs on, the root first, gets its best tokens as children; of those the likeliest paths make up the
    next level that it runs on.

    Attributes:
        lengths: [R] slots of the texts, which the tails begin behind; the last is the root's.
        skipped: tokens at the start of every text that the model was not fed: by so many its positions are behind the text's.
        block_tables: [R, B].
        limits: [R, levels, 2] for each level below the root that the model runs on: most children of a node that are looked at for
            it, and most nodes of it; zeros from a tree's end on.
        num_children: of every node, that are found.
        seeds: [R] of the requests' noise.
        completions: [R] likewise.
        temperatures: [R] 0 takes the likeliest tokens, and no noise counts.
        alphas: [R] trust in the noise.
        num_columns: columns of the logits that may be chosen from.
        token_ids: [columns] ascending, the token of each column; None for 0, 1, 2, …
        num_candidates: likeliest tokens to be told of every node besides, without noise.
        num_nodes: best drafted nodes of each tree that are laid out for the LLM; 0 for none.
        branches: [R, levels + 1] for each level that the model runs on, the root's first: most children of a node that may be among
            these, as many as `limits` says or more. None where `num_nodes` is 0.
    """

    lengths: Int32
    skipped: int
    block_tables: Int32
    limits: Int32
    num_children: int
    seeds: UInt64
    completions: Int32
    temperatures: Float64
    alphas: Float64
    num_columns: int
    token_ids: Int64 | None = None
    num_candidates: int = 0
    num_nodes: int = 0
    branches: Int32 | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class GrownLevel:
    """Nodes of one level that the model ran on, on the host: at most `width` of each tree, and padding behind them.

    They lie in their tree's tail in the order of the levels, one after the other.

    Attributes:
        counts: [R] nodes.
        tokens: [R, width]; 0 for roots.
        parents: [R, width] the parents' places in the tree's level before; 0 for roots and padding.
        children: [R, width, children] the best tokens after each node, best first, then -1: there is none at all where the
            logits are not finite.
        log_probs: [R, width, children] logarithms of their shares, the shared noise counted in.
        candidates: [R, width, candidates] columns of the likeliest tokens.
        candidate_logits: [R, width, candidates] their logits.
    """

    counts: Int32
    tokens: Int32
    parents: Int32
    children: Int32
    log_probs: Float32
    candidates: Int32
    candidate_logits: Float32


@dataclass(frozen=True, kw_only=True, eq=False)
class GrownTrees:
    """R trees, on the host.

    Attributes:
        levels: the roots' level, and those below it that there are limits for.
        nodes: [R, nodes, 4] the first columns of the tables of the best nodes; see `flexspec.codegen.device_trees`.
    """

    levels: Sequence[GrownLevel]
    nodes: Int32


class Growth(Protocol):
    """R trees that grow on the device, without the host waiting for them."""

    @property
    def packed(self) -> torch.Tensor:
        """[n] int32, on the device until trees are grown with this model again, to be read by `read`."""
        ...

    @property
    def nodes(self) -> torch.Tensor:
        """[R, nodes, columns] int32, on the device: tables of the best nodes of each tree; see `flexspec.codegen.device_trees`."""
        ...

    def read(self, packed: Int32) -> GrownTrees:
        """What came of it, of `packed`, fetched to the host."""
        ...


class LevelGrower(Protocol):
    """Grows trees with one model."""

    def covers(self, sizes: Sequence[int], num_children: int) -> bool:
        """Whether there are kernels for a tree.

        Args:
            sizes: nodes of each level below the root that the model runs on.
            num_children: as in `GrowthPlan`.
        """
        ...

    def grow(self, kv: KVStorage, plan: GrowthPlan, logits: torch.Tensor, states: torch.Tensor | None) -> Growth:
        """Begin to grow trees; the host does not wait. It counts as a pass: results of the one before are no longer valid.

        Args:
            kv: the cache; the tails are written.
            plan: the trees.
            logits: [R, columns] float32 after the roots, on the device.
            states: [R, hidden_size] the model's own hidden states at the roots, on the device; None for a model without features.
        """
        ...

    def states(self, rows: Sequence[int]) -> torch.Tensor:
        """As `CompiledModel.hidden_states`, but left on the device, in the model's dtype."""
        ...
