"""Where two texts part, and how far apart the logits are there."""

import pytest
import torch

import flexspec
from flexspec.checking.equality import first_difference
from flexspec.checking.next_logits import next_logits
from flexspec.runtime.output import Output
from flexspec.runtime.stats import RequestStats
from tiny_models import random_prompt, tiny

PROMPT = random_prompt(9)


@pytest.fixture(scope="module")
def llm() -> flexspec.LLM:
    return flexspec.compile(tiny("llama"), [])


def output(tokens: list[int]) -> Output:
    return Output(prompt_token_ids=PROMPT, token_ids=tokens, text="", finish_reason="length", stats=RequestStats())


def test_next_logits_are_the_models(llm: flexspec.LLM) -> None:
    long = random_prompt(508, seed=1)
    for tokens in (PROMPT, long):
        with torch.no_grad():
            expected = tiny("llama")(torch.tensor([tokens])).logits[0, -1]
        torch.testing.assert_close(next_logits(llm.plan.llm.model, tokens), expected, rtol=1e-4, atol=1e-3)


def test_identical_texts(llm: flexspec.LLM) -> None:
    assert first_difference(llm.plan.llm.model, output([4, 5]), output([4, 5])) is None


def test_gap_is_that_of_the_plain_models_logits(llm: flexspec.LLM) -> None:
    difference = first_difference(llm.plan.llm.model, output([4, 5, 6, 7]), output([4, 5, 9, 7]))
    assert difference is not None
    with torch.no_grad():
        logits = tiny("llama")(torch.tensor([[*PROMPT, 4, 5]])).logits[0, -1]
    assert (difference.position, difference.plain, difference.speculative) == (2, 6, 9)
    assert difference.gap == pytest.approx(float(logits[6] - logits[9]), abs=1e-3)
    assert "new token 3 is 6 plainly and 9 speculatively" in str(difference)


def test_a_text_that_ends_early(llm: flexspec.LLM) -> None:
    difference = first_difference(llm.plan.llm.model, output([4, 5, 6]), output([4, 5]))
    assert difference is not None
    assert (difference.position, difference.plain, difference.speculative, difference.gap) == (2, 6, None, None)
    assert "the end speculatively" in str(difference)
