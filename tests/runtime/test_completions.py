"""Several completions of one prompt."""

import pytest
import torch

from engine_reference import plain
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import GenerationInterrupted
from flexspec.runtime.sampling import RequestSampler
from flexspec.tree_shape import TreeSpec
from toy_model import ToyModel

VOCAB = 24
PROMPTS = [[3], [1, 2, 1, 2]]


def toy(**changes):
    return ToyModel(vocab_size=VOCAB, seed=3, max_pass_tokens=64, **changes)


def engine_of(widths=(), **options):
    drafters = [SsmDrafter("half", toy(noise=0.3), max_requests=8, block_size=120)]
    return Engine(toy(), drafters=drafters, tree=TreeSpec(widths=widths), max_len=60, **options)


def params(n, **changes):
    return SamplingParams(**{"max_tokens": 20, "temperature": 0.9, "seed": 5, "n": n} | changes)


@pytest.mark.parametrize("max_batch", [2, 8])
def test_they_come_in_a_row_for_each_prompt_and_the_first_is_that_of_one(max_batch):
    outputs = engine_of((2, 2, 1), max_batch=max_batch).generate(PROMPTS, [params(3), params(2)])
    assert [output.completion for output in outputs] == [0, 1, 2, 0, 1]
    assert [output.prompt_token_ids for output in outputs] == [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2
    assert len({tuple(output.token_ids) for output in outputs}) == 5
    assert [outputs[0].token_ids, outputs[3].token_ids] == [plain(toy(), prompt, params(1)) for prompt in PROMPTS]


@pytest.mark.parametrize("rules", [{}, {"frequency_penalty": 1.0, "repetition_penalty": 1.2}])
def test_speculation_changes_none_of_them(rules):
    expected = [output.token_ids for output in engine_of().generate(PROMPTS, params(4, **rules))]
    outputs = engine_of((2, 2, 1)).generate(PROMPTS, params(4, **rules))
    assert [output.token_ids for output in outputs] == expected
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)


def test_the_noise_of_each_is_keyed_by_its_number():
    outputs = engine_of((2, 1)).generate(PROMPTS[:1], params(3))
    for output in outputs:
        sampler = RequestSampler(params(3), seed=5, vocab_limit=VOCAB, completion=output.completion)
        text = list(PROMPTS[0])
        while len(text) < 21:
            text.append(sampler.pick(torch.from_numpy(toy().logits_of(text)), len(text)))
        assert output.token_ids == text[1:]


def test_without_a_seed_they_share_a_fresh_one():
    engine = engine_of((2, 1))
    runs = [engine.generate(PROMPTS[:1], params(2, seed=None)) for _ in range(2)]
    assert len({tuple(output.token_ids) for run in runs for output in run}) == 4


def test_the_same_text_many_times_is_refused():
    with pytest.raises(UsageError, match=r"n=3 at temperature=0 .* give a temperature"):
        SamplingParams(n=3)


def test_calls_that_make_one_text_refuse_more():
    engine = engine_of((2, 1))
    for call in (engine.add, engine.stream):
        with pytest.raises(UsageError, match=rf"n=2 .*`{call.__name__}`.*generate"):
            call([1], params(2))
    assert not engine.has_work


def test_an_interrupt_hands_over_all_of_them(monkeypatch):
    engine = engine_of((2, 1), max_batch=2)
    forward, passes = engine.model.forward, 0

    def interrupted_in_the_fourth_pass(*arguments):
        nonlocal passes
        passes += 1
        if passes == 4:
            raise KeyboardInterrupt
        return forward(*arguments)

    monkeypatch.setattr(engine.model, "forward", interrupted_in_the_fourth_pass)
    with pytest.raises(GenerationInterrupted) as caught:
        engine.generate(PROMPTS, params(2))
    assert [output.completion for output in caught.value.outputs] == [0, 1, 0, 1]
    assert not engine.has_work
