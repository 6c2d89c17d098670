"""What every kind of draft model offers to the trainer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from flexspec.tuning.batches import TextBatch


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a draft model says about the tokens of the answers in a batch.

    Attributes:
        hidden: [depths, rows, hidden] normed hidden states, of which the draft's output matrix makes logits; at depth d the
            d tokens before the predicted one are drafts as well.
        is_valid: [depths, rows] whether there is such a prediction.
        target: bfloat16 [rows, hidden] normed hidden states of the LLM for the same predictions.
        token_ids: [rows] the tokens that came.
        places: [rows, 2] their text in the batch, and their place in it.
    """

    hidden: Tensor
    is_valid: Tensor
    target: Tensor
    token_ids: Tensor
    places: Tensor


class Objective(Protocol):
    """A draft model in training.

    Attributes:
        module: the draft model; parameters that require gradients are trained.
        depths: how many tokens deep it drafts in training.
        lm_head: bfloat16 [draft vocab, hidden] the output matrix, the LLM's own rows.
        token_ids: [draft vocab] the tokens of its rows, ascending.
    """

    @property
    def module(self) -> nn.Module: ...

    @property
    def depths(self) -> int: ...

    @property
    def lm_head(self) -> Tensor: ...

    @property
    def token_ids(self) -> Tensor: ...

    def predict(self, batch: TextBatch, *, depths: int) -> Predictions:
        """Everything that the draft model says about the answers of a batch."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """What is stored of the trained model, by name."""
        ...


def answer_places(batch: TextBatch, *, first: int) -> Tensor:
    """[rows, 2] text and place of every answer token from place `first` of its text on: the tokens that are predicted."""
    wanted = batch.is_answer.clone()
    wanted[:, :first] = False
    return torch.nonzero(wanted)
