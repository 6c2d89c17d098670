"""Batches: every text once a pass, in an order that the seed repeats."""

from itertools import islice

import pytest
import torch

from flexspec.tuning.batches import iterate_batches, make_batch, plan_batches
from tuning_cases import random_states, text

LENGTHS = [(7 * number) % 90 + 2 for number in range(300)]
TEXTS = [text(length, 1 + length // 2, seed=number) for number, length in enumerate(LENGTHS)]
STATES = random_states(TEXTS, 6)


@pytest.mark.parametrize("batch_tokens", [1, 64, 1000, 10**6])
def test_a_pass_has_every_text_once(batch_tokens: int) -> None:
    plan = plan_batches(LENGTHS, batch_tokens=batch_tokens, seed=0, turn=0)
    assert sorted(number for group in plan for number in group) == list(range(300))
    for group in plan:
        assert group and (len(group) == 1 or len(group) * max(LENGTHS[number] for number in group) <= batch_tokens)


def test_orders_repeat_by_seed_and_differ_by_pass() -> None:
    def plan(seed: int, turn: int) -> list[list[int]]:
        return plan_batches(LENGTHS, batch_tokens=400, seed=seed, turn=turn)

    assert plan(0, 0) == plan(0, 0)
    assert plan(0, 0) != plan(0, 1) != plan(1, 1) != plan(1, 0)


def test_padding_is_masked() -> None:
    numbers = [3, 0, 12]
    batch = make_batch(TEXTS, STATES, numbers)  # type: ignore[arg-type]
    longest = max(LENGTHS[number] for number in numbers)
    assert batch.token_ids.shape == batch.is_answer.shape == (3, longest) and batch.states.shape == (3, longest, 6)
    for row, number in enumerate(numbers):
        length = LENGTHS[number]
        assert batch.token_ids[row, :length].tolist() == TEXTS[number].tokens.tolist()
        assert batch.is_answer[row].tolist() == [*TEXTS[number].is_answer.tolist(), *[False] * (longest - length)]
        assert torch.equal(batch.states[row, :length], STATES.read(number)) and not batch.states[row, length:].any()


@pytest.mark.parametrize("start", [0, 1, 7, 46, 200])
def test_it_goes_on_at_any_batch(start: int) -> None:
    numbers = range(5, 300, 3)

    def first(count: int, start: int) -> list[list[int]]:
        batches = iterate_batches(TEXTS, STATES, batch_tokens=200, seed=4, start=start, numbers=numbers)  # type: ignore[arg-type]
        return [list(batch.numbers) for batch in islice(batches, count)]

    unbroken = first(start + 3, 0)
    assert first(3, start) == unbroken[start:]
    passes = [number for group in first(160, 0) for number in group][: 2 * len(numbers)]
    assert sorted(passes[: len(numbers)]) == sorted(passes[len(numbers) :]) == list(numbers)
