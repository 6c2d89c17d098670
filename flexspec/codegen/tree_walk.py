"""The walk through token trees on the device that has the logits, so that only accepted tokens travel to the host."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Int32

UInt64 = npt.NDArray[np.uint64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class WalkedTrees:
    """R trees whose M nodes are the rows of logits, one tree after the other, and how each of them chooses tokens.

    Attributes:
        tokens: [M].
        parents: [M], counted within the tree; -1 for roots.
        node_starts: [R + 1], the first node of each tree; [R] is M.
        seeds: [R] of the requests' noise.
        completions: [R] likewise.
        indices: [R] text position of the token that follows the root.
        temperatures: [R] 0 takes the likeliest token.
        vocab_limits: [R] token ids from here on are never chosen.
    """

    tokens: Int32
    parents: Int32
    node_starts: Int32
    seeds: UInt64
    completions: Int32
    indices: Int32
    temperatures: Float64
    vocab_limits: Int32


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


TreeWalker = Callable[[torch.Tensor, WalkedTrees], Walks]
"""Walks trees by logits [M, vocab], as plain decoding would: `flexspec.runtime.verifiers.walk` on the device."""
