"""Trials of drafted tokens on the device that has the logits, for verifiers that decide by chance: only their chances travel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Int32
from flexspec.codegen.truncation import Truncation

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TriedTrees:
    """R trees whose M nodes are the rows of logits, one tree after the other, and the N visits of nodes there may be.

    A visit makes up to K trials, as `flexspec.runtime.verifiers.trials` has them: x, drawn from q, is accepted with
    probability min(1, owed * p(x) / q(x)), else it leaves max(0, owed * p - q), normalised.

    Attributes:
        node_starts: [R + 1], the first node of each tree; [R] is M.
        temperatures: [R] above 0.
        vocab_limits: [R] token ids from here on are never chosen.
        truncation: what is cut; None if no tree cuts anything.
        rows: [N] the node of each visit, whose logits give p.
        level_starts: [levels + 1] where the visits of each level begin; [levels] is N.
        debts: [N] whose acceptance a visit owes: visit * K + trial of an earlier level; -1 owes 1.
        is_decided: [N] 1 where trials are accepted by `uniforms`, 0 where only those are that can't fail.
        tokens: [N, K] token of each trial, -1 behind the last.
        q_rows: [N, K] what it was drawn from, as a number in `q`; -1 for a token that was chosen.
        uniforms: [N, K + 1] the number that decides on each trial; the one behind i failed trials draws the bonus token.
        q_starts: [Q + 1] where each q begins.
        q_ids: [q_starts[Q]] token ids.
        q_probs: [q_starts[Q]] their probabilities.
    """

    node_starts: Int32
    temperatures: Float64
    vocab_limits: Int32
    truncation: Truncation | None
    rows: Int32
    level_starts: Sequence[int]
    debts: Int32
    is_decided: Int32
    tokens: Int32
    q_rows: Int32
    uniforms: Float64
    q_starts: Int64
    q_ids: Int64
    q_probs: Float64


@dataclass(frozen=True, kw_only=True)
class TrialResults:
    """What the trials came to, on the host; NaN where the logits are not finite.

    Attributes:
        acceptances: [N, K] of the trials that were made, 0 of the others.
        owed: [N] what is owed after the last failed trial.
        accepted: [N] the trial that was accepted; -1 for none.
        bonus: [N] the token drawn from what the trials left; -1 if one was accepted, if nothing is owed, and where the
            logits are not finite.
    """

    acceptances: Float64
    owed: Float64
    accepted: Int32
    bonus: Int32


class TreeTrials(Protocol):
    """Makes the trials of trees on the logits' device."""

    def launch(self, logits: torch.Tensor, trees: TriedTrees) -> torch.Tensor:
        """Begin the trials, without waiting for them.

        Args:
            logits: [M, vocab].
            trees: whose nodes these are the logits of.

        Returns:
            [N, K + 3] float64 on the logits' device, to be read by `read`.
        """
        ...

    def read(self, packed: Float64) -> TrialResults:
        """What the trials came to, of what `launch` returned, fetched to the host."""
        ...
