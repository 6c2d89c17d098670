"""Texts → batches of similar lengths, in an order that a seed and the pass over the texts determine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flexspec.tuning.corpus import Text
from flexspec.tuning.states import StateFile

_SORTED_TOGETHER = 128
"""Texts that are sorted by length before they are cut into batches: enough for little padding, few enough to be mixed."""


@dataclass(frozen=True, kw_only=True)
class TextBatch:
    """Texts side by side, padded at the end.

    Attributes:
        numbers: [batch] of the texts.
        token_ids: [batch, tokens].
        states: bfloat16 [batch, tokens, hidden_size] the LLM's hidden states, the one that its output matrix reads last.
        is_answer: [batch, tokens] whether the LLM wrote the token; never for padding.
    """

    numbers: Sequence[int]
    token_ids: Tensor
    states: Tensor
    is_answer: Tensor


def plan_batches(lengths: Sequence[int], *, batch_tokens: int, seed: int, turn: int) -> list[list[int]]:
    """Which texts make up each batch of one pass over all of them.

    Args:
        lengths: of the texts.
        batch_tokens: most tokens of a batch, padding included; a longer text is a batch of its own.
        seed: of the order.
        turn: the number of the pass; each has an order of its own.
    """
    rng = np.random.default_rng((seed, turn))
    order = rng.permutation(len(lengths))
    batches: list[list[int]] = []
    for start in range(0, len(order), _SORTED_TOGETHER):
        group: list[int] = []
        for number in sorted(order[start : start + _SORTED_TOGETHER].tolist(), key=lambda one: lengths[one]):
            if group and (len(group) + 1) * lengths[number] > batch_tokens:
                batches.append(group)
                group = []
            group.append(number)
        batches.append(group)
    return [batches[place] for place in rng.permutation(len(batches))]


def iterate_batches(
    texts: Sequence[Text], states: StateFile, *, batch_tokens: int, seed: int, start: int, numbers: Sequence[int]
) -> Iterator[TextBatch]:
    """Batches without end, from batch number `start` on, pass after pass over the texts `numbers`."""
    turn = 0
    while True:
        plan = plan_batches([len(texts[number].tokens) for number in numbers], batch_tokens=batch_tokens, seed=seed, turn=turn)
        for group in plan[start:]:
            yield make_batch(texts, states, [numbers[place] for place in group])
        start = max(start - len(plan), 0)
        turn += 1


def make_batch(texts: Sequence[Text], states: StateFile, numbers: Sequence[int]) -> TextBatch:
    """The texts `numbers` as one batch."""
    length = max(len(texts[number].tokens) for number in numbers)
    token_ids = torch.zeros((len(numbers), length), dtype=torch.int64)
    is_answer = torch.zeros((len(numbers), length), dtype=torch.bool)
    rows = [states.read(number) for number in numbers]
    padded = torch.zeros((len(numbers), length, rows[0].shape[1]), dtype=torch.bfloat16)
    for row, number in enumerate(numbers):
        count = len(texts[number].tokens)
        token_ids[row, :count] = torch.from_numpy(texts[number].tokens)
        is_answer[row, :count] = torch.from_numpy(texts[number].is_answer)
        padded[row, :count] = rows[row]
    return TextBatch(numbers=numbers, token_ids=token_ids, states=padded, is_answer=is_answer)
