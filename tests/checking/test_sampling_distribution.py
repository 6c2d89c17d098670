"""The distribution of speculative sampling: where the test begins, and that texts without probability fail it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import flexspec
from flexspec.bench.prompt_groups import BenchPrompt
from flexspec.checking.sampling_distribution import (
    TEMPERATURE,
    TOP_P,
    DistributionTest,
    check_distribution,
    informative_prefix,
    sampled_length,
)
from flexspec.models.load import load_model
from flexspec.runtime.output import Output
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.stats import RequestStats
from flexspec.tree_shape import TreeSpec
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt

PROMPT = random_prompt(9)


@pytest.fixture(scope="module")
def llm(model_folder: str) -> flexspec.LLM:
    return flexspec.compile(model_folder, ["ngram"], dtype="float32", tree=[1, 1])


def output(tokens: list[int]) -> Output:
    return Output(prompt_token_ids=PROMPT, token_ids=tokens, text="", finish_reason="length", stats=RequestStats())


def test_it_begins_where_the_next_token_is_certain_and_the_one_after_is_not(llm: flexspec.LLM, model_folder: str) -> None:
    loaded = load_model(model_folder)
    continuation = greedy_reference(loaded.module, PROMPT, 24)
    prefix = informative_prefix(llm, loaded, output(continuation))
    sampler = RequestSampler(flexspec.SamplingParams(temperature=TEMPERATURE, top_p=TOP_P), seed=0, vocab_limit=TINY_VOCAB)
    with torch.no_grad():
        rows = loaded.module(torch.tensor([PROMPT + continuation])).logits[0, len(PROMPT) - 1 :]
    tops = np.array([sampler.distribution(row).probs.max() for row in rows])
    best = int(np.argmax(tops[:-1] * tops[1:] * (1 - tops[1:])))
    assert prefix == PROMPT + continuation[:best]
    assert tops[best] > 0.8 and 0.2 < tops[best + 1] < 0.8


def test_texts_without_probability_fail(llm: flexspec.LLM, model_folder: str) -> None:
    class Wild:
        """One text in a hundred is impossible: too few for the chi-square test."""

        def generate(self, prompts: Sequence[list[int]], params: Sequence[flexspec.SamplingParams]) -> list[Output]:
            outputs = plain.engine.generate(prompts, params)
            outputs[0].token_ids[0] = least_likely
            return outputs

    plain = flexspec.compile(model_folder, [], dtype="float32")
    loaded = load_model(model_folder)
    with torch.no_grad():
        least_likely = int(loaded.module(torch.tensor([PROMPT])).logits[0, -1].argmin())
    wild: Any = Wild()
    prompt = BenchPrompt(id="x", category="x", token_ids=PROMPT)
    test = DistributionTest(test="mss", tree=TreeSpec(widths=(1, 1)), prompt=prompt, samples=100, threshold=1e-3)
    sound = check_distribution(plain.engine, llm, loaded, test)
    row = check_distribution(wild, llm, loaded, test)
    assert sound.lossless and "no probability" not in sound.detail
    assert not row.lossless
    assert row.p_value is not None and row.p_value > 1e-3
    assert "1 texts have no probability" in row.detail


def test_length_covers_a_whole_path() -> None:
    assert sampled_length(TreeSpec(widths=(1, 1))) == 4
    assert sampled_length(TreeSpec(widths=(2,))) == 3
