"""How well a draft model guesses texts that it was not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.tuning.batches import TextBatch, make_batch
from flexspec.tuning.corpus import Text
from flexspec.tuning.distillation import chunk_rows
from flexspec.tuning.objective import Objective, Predictions
from flexspec.tuning.states import StateFile

Ranks = npt.NDArray[np.int64]

RANKS = 8
"""Ranks that are told apart; all others are misses."""


@dataclass(frozen=True, kw_only=True)
class HitRates:
    """How often the token that came was among the draft model's likeliest.

    Attributes:
        by_depth: [depth][k - 1] share of the places where it was among the first k, the tokens drafted before on the way there
            (0, 1, … of them) having been the likeliest ones, and right.
        counts: [depth] such places.
    """

    by_depth: list[list[float]]
    counts: list[int]


class RankTable:
    """The rank that a draft model gave each answer token of some texts, by depth; a miss is `RANKS`.

    Args:
        objective: the draft model.
        depths: tokens it drafts in a row.
    """

    def __init__(self, objective: Objective, *, depths: int) -> None:
        self._objective = objective
        self._depths = depths
        self.ranks: dict[int, Ranks] = {}  # text → [depths, tokens], -1 where nothing is predicted

    def add(self, texts: Sequence[Text], states: StateFile, number: int) -> None:
        """Rate the text `number`."""
        batch = make_batch(texts, states, [number])
        with torch.no_grad():
            said = self._objective.predict(batch, depths=self._depths)
        self.ranks[number] = self._ranks(batch, said)

    def _ranks(self, batch: TextBatch, said: Predictions) -> Ranks:
        objective = self._objective
        table = np.full((self._depths, batch.token_ids.shape[1]), -1, dtype=np.int64)
        columns = torch.searchsorted(objective.token_ids, said.token_ids).clamp(max=len(objective.token_ids) - 1)
        is_known = objective.token_ids[columns] == said.token_ids
        places = said.places[:, 1].numpy()
        for depth in range(self._depths):
            hidden = said.hidden[min(depth, len(said.hidden) - 1)]
            above = _count_above(hidden.to(objective.lm_head.dtype), objective.lm_head, columns)
            rank = torch.where(is_known, above.clamp(max=RANKS), RANKS)
            valid = said.is_valid[min(depth, len(said.is_valid) - 1)]
            table[depth, places] = torch.where(valid, rank, -1).numpy()
        return table

    def hits(self, number: int) -> npt.NDArray[np.bool_]:
        """[tokens] of a text: whether the likeliest token was the right one, at depth 0."""
        found: npt.NDArray[np.bool_] = self.ranks[number][0] == 0
        return found

    def rates(self) -> HitRates:
        """Over all texts."""
        hits = np.zeros((self._depths, RANKS), dtype=np.int64)
        counts = np.zeros(self._depths, dtype=np.int64)
        for ranks in self.ranks.values():
            reached = np.ones(ranks.shape[1], dtype=np.bool_)
            for depth in range(self._depths):
                here = ranks[depth]
                if depth:
                    reached = np.concatenate([[False], reached[:-1] & (ranks[depth - 1, :-1] == 0)])
                counted = reached & (here >= 0)
                counts[depth] += counted.sum()
                hits[depth] += np.array([(here[counted] < k).sum() for k in range(1, RANKS + 1)])
        shares = hits / np.maximum(counts, 1)[:, None]
        return HitRates(by_depth=shares.round(4).tolist(), counts=counts.tolist())


def _count_above(hidden: Tensor, lm_head: Tensor, columns: Tensor) -> Tensor:
    """[rows] logits that are drafted before the one in each row's column: those above it, and of equals the earlier ones."""
    step = chunk_rows(len(lm_head))
    counts = torch.zeros(len(hidden), dtype=torch.int64)
    for begin in range(0, len(hidden), step):
        logits = (hidden[begin : begin + step] @ lm_head.T).float()
        own_columns = columns[begin : begin + step, None]
        own = logits.gather(1, own_columns)
        ties = (logits == own) & (torch.arange(logits.shape[1]) < own_columns)
        counts[begin : begin + step] = ((logits > own) | ties).sum(dim=1)
    return counts
