"""Ranks and hit rates, against tables made by hand."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flexspec.tuning.batches import TextBatch
from flexspec.tuning.corpus import Text
from flexspec.tuning.evaluation import RANKS, RankTable
from flexspec.tuning.objective import Predictions, answer_places
from tuning_cases import MemoryStates


@dataclass
class Scripted:
    """As `Objective`: its logits for place p of a text at depth d are `logits[d][p]`."""

    logits: Tensor  # [depths, places, columns]
    token_ids: Tensor
    first_valid: int = 1
    module: nn.Module | None = None
    depths: int = 1

    @property
    def lm_head(self) -> Tensor:
        return torch.eye(self.logits.shape[2], dtype=torch.bfloat16)

    def predict(self, batch: TextBatch, *, depths: int) -> Predictions:
        places = answer_places(batch, first=1)
        tokens = places[:, 1]
        depth = torch.arange(len(self.logits))[:, None]
        return Predictions(
            hidden=self.logits[:, tokens],
            is_valid=tokens - self.first_valid >= depth,
            target=batch.states[0, tokens],
            token_ids=batch.token_ids[0, tokens],
            places=places,
        )


def table(objective: Scripted, tokens: list[int], answers: list[int], *, depths: int) -> RankTable:
    text = Text(tokens=np.array(tokens), is_answer=np.isin(np.arange(len(tokens)), answers))
    ranks = RankTable(objective, depths=depths)  # type: ignore[arg-type]
    ranks.add([text], MemoryStates([torch.zeros(len(tokens), 2)]), 0)  # type: ignore[arg-type]
    return ranks


@pytest.mark.parametrize("rows", [1, 3, 256])
def test_ranks_of_a_trimmed_vocabulary(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("flexspec.tuning.evaluation.chunk_rows", lambda columns: rows)
    logits = torch.tensor([[9.0, 1, 2, 3], [4, 3, 2, 1], [4, 3, 2, 1], [4, 3, 2, 1], [4, 4, 4, 1]])[None]
    ranks = table(Scripted(logits, torch.tensor([10, 20, 30, 40])), [7, 20, 25, 50, 30], [1, 2, 3, 4], depths=1)
    assert ranks.ranks[0].tolist() == [[-1, 1, RANKS, RANKS, 2]], "tokens that it can't draft are misses; of equals the first is drafted"
    assert ranks.hits(0).tolist() == [False] * 5
    assert ranks.rates().counts == [4] and ranks.rates().by_depth == [[0.0, 0.25, *[0.5] * 6]]


def test_ranks_beyond_those_told_apart_are_misses() -> None:
    logits = torch.arange(20.0).flip(0).expand(1, 3, 20)
    assert table(Scripted(logits, torch.arange(20)), [3, 7, 8], [1, 2], depths=1).ranks[0].tolist() == [[-1, 7, RANKS]]


def test_deeper_tokens_count_where_those_before_were_right() -> None:
    ranks = RankTable(Scripted(torch.zeros(1, 1, 2), torch.arange(2)), depths=3)  # type: ignore[arg-type]
    ranks.ranks[0] = np.array(
        [
            #  the prompt, then the answer
            [-1, 0, 0, 1, 0, 0, 8],
            [-1, -1, 0, 0, 2, 0, 1],
            [-1, -1, -1, 0, 0, 3, 0],
        ]
    )
    rates = ranks.rates()
    # depth 1 counts at 2, 3, 5, 6, where depth 0 was right one before; depth 2 at 3 (0 at 1, 0 at 2), at 4 (0 at 2, 0 at 3), at 6.
    assert rates.counts == [6, 4, 3]
    assert [row[:4] for row in rates.by_depth] == [[0.6667, 0.8333, 0.8333, 0.8333], [0.75, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    ranks.ranks[1] = np.array([[-1, 8, 8], [-1, -1, 0], [-1, -1, -1]])
    assert ranks.rates().counts == [8, 4, 3]


@pytest.mark.parametrize("first_valid", [1, 2])
def test_places_that_no_draft_reaches_are_left_out(first_valid: int) -> None:
    logits = torch.tensor([[[1.0, 2], [1, 2], [1, 2], [1, 2]]]).expand(2, 4, 2)
    ranks = table(Scripted(logits, torch.arange(2), first_valid=first_valid), [0, 1, 1, 1], [1, 2, 3], depths=2)
    expected = [[-1, 0, 0, 0], [-1, -1, 0, 0]] if first_valid == 1 else [[-1, -1, 0, 0], [-1, -1, -1, 0]]
    assert ranks.ranks[0].tolist() == expected


def test_a_model_that_sees_tokens_alone_is_as_good_at_every_depth() -> None:
    logits = torch.tensor([[[1.0, 2], [1, 2], [2, 1], [1, 2]]])
    ranks = table(Scripted(logits, torch.arange(2), first_valid=0), [0, 1, 1, 1], [1, 2, 3], depths=3)
    assert ranks.ranks[0].tolist() == [[-1, 0, 1, 0]] * 3
    assert ranks.rates().counts == [3, 1, 0]
