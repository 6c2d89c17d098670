"""Penalties against their definitions, written plainly, and against Hugging Face's own."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from flexspec.runtime.logit_rules.base import Float32, LogitRule
from flexspec.runtime.logit_rules.penalties import OccurrencePenalties, RepetitionPenalty

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=9)


def told(rule: LogitRule, prompt: list[int], steps: list[list[int]]) -> LogitRule:
    """The rule after a prompt and the tokens of some steps."""
    rule.extend(prompt)
    for step in steps:
        rule.extend(step)
    return rule


def applied(rule: LogitRule, logits: Float32, path: list[int]) -> list[float]:
    changed = logits.copy()
    rule.apply(changed, path)
    return changed.tolist()


def logits_of(seed: int, size: int = VOCAB) -> Float32:
    logits = (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
    logits[seed % size] = -np.inf
    return logits


@settings(max_examples=60, deadline=None)
@given(prompt=TOKENS, steps=st.lists(TOKENS, max_size=4), path=TOKENS, penalty=st.sampled_from([0.5, 1.3, 2.0]), seed=st.integers(0, 99))
def test_repetition_penalty_is_that_of_hugging_face_on_the_whole_path(
    prompt: list[int], steps: list[list[int]], path: list[int], penalty: float, seed: int
) -> None:
    rule = told(RepetitionPenalty(penalty), prompt, steps)
    text = torch.tensor([[*prompt, *chain(*steps), *path]], dtype=torch.int64)
    logits = logits_of(seed)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(text, torch.from_numpy(logits.copy())[None])[0]
    for _ in range(2):  # nothing of the path is kept
        assert applied(rule, logits, path) == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(
    prompt=TOKENS,
    steps=st.lists(TOKENS, max_size=4),
    path=TOKENS,
    presence=st.sampled_from([0.0, 0.75, -2.0]),
    frequency=st.sampled_from([0.0, 1.5, -0.25]),
    seed=st.integers(0, 99),
)
def test_occurrence_penalties_count_new_tokens_and_the_path_but_not_the_prompt(
    prompt: list[int], steps: list[list[int]], path: list[int], presence: float, frequency: float, seed: int
) -> None:
    rule = told(OccurrencePenalties(presence=presence, frequency=frequency), prompt, steps)
    new = [*chain(*steps), *path]
    logits = logits_of(seed)
    expected = [
        float(np.float32(logit - np.float32(frequency * new.count(token) + presence * (token in new))))
        for token, logit in enumerate(logits)
    ]
    for _ in range(2):
        np.testing.assert_allclose(applied(rule, logits, path), expected, rtol=1e-6)


@pytest.mark.parametrize("rule", [RepetitionPenalty(1.3), OccurrencePenalties(presence=0.5, frequency=0.5)], ids=str)
def test_a_smaller_vocabulary_is_penalised_where_it_has_the_tokens(rule: LogitRule) -> None:
    told(rule, [11, 2], [[10, 3, 3]])
    whole, part = logits_of(1), logits_of(1)[:4]
    assert applied(rule, part, [9, 1, 1]) == applied(rule, whole, [9, 1, 1])[:4]
    assert applied(rule, part, [9, 1, 1]) != part.tolist()


def test_long_texts_are_counted_too() -> None:
    rng = np.random.default_rng(0)
    rule = OccurrencePenalties(presence=0, frequency=1)
    rule.extend([1])
    text: list[int] = []
    for _ in range(40):
        step = rng.integers(0, 500, 7).tolist()
        rule.extend(step)
        text += step
    assert applied(rule, np.zeros(500, dtype=np.float32), [499, 499]) == [-float([*text, 499, 499].count(token)) for token in range(500)]
