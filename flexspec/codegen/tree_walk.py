"""The walk through token trees on the device that has the logits, so that only accepted tokens travel to the host."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Int32
from flexspec.codegen.tree_trials import TreeTrials
from flexspec.codegen.truncation import Truncation

UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class WalkedTrees:
    """R trees whose M nodes are the rows of logits, one tree after the other, and how each of them chooses tokens.

    Attributes:
        tokens: [M]; may lie on the logits' device.
        parents: [M], counted within the tree; -1 for roots; may lie there too.
        node_starts: [R + 1], the first node of each tree; [R] is M.
        seeds: [R] of the requests' noise.
        completions: [R] likewise.
        indices: [R] text position of the token that follows the root.
        temperatures: [R] 0 takes the likeliest token.
        vocab_limits: [R] token ids from here on are never chosen.
        truncation: what is cut before a token is chosen; None if no tree cuts anything.
        max_depth: the most nodes of a path, where the host knows fewer than the largest tree has; a path ends there with the
            token of its next node.
    """

    tokens: Int32 | torch.Tensor
    parents: Int32 | torch.Tensor
    node_starts: Int32
    seeds: UInt64
    completions: Int32
    indices: Int32
    temperatures: Float64
    vocab_limits: Int32
    truncation: Truncation | None = None
    max_depth: int | None = None


@dataclass(frozen=True, kw_only=True)
class Walks:
    """What the walks say, on the host.

    Attributes:
        paths: [R, depth] accepted nodes from the root down, counted within the tree, then -1.
        lengths: [R] how many they are.
        bonus: [R] the token after the last of them; -1 where the logits there are not finite.
    """

    paths: Int32
    lengths: Int32
    bonus: Int32


class TreeWalker(Protocol):
    """Walks trees by logits, as plain decoding would: `flexspec.runtime.verifiers.walk` on the device.

    Attributes:
        trials: those of verifiers that decide by chance.
    """

    @property
    def trials(self) -> TreeTrials: ...

    def launch(self, logits: torch.Tensor, trees: WalkedTrees) -> torch.Tensor:
        """Begin the walks, without waiting for them.

        Args:
            logits: [M, vocab].
            trees: whose nodes these are the logits of.

        Returns:
            [R, 2 + depth] int32 on the logits' device, to be read by `read`.
        """
        ...

    def read(self, packed: Int32) -> Walks:
        """What the walks say, of what `launch` returned, fetched to the host."""
        ...

    def __call__(self, logits: torch.Tensor, trees: WalkedTrees) -> Walks:
        """Walk the trees and wait for what that says; arguments as `launch`."""
        ...
