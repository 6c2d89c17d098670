"""Requests that can't go on end alone."""

import math
import re

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import RequestMistake
from flexspec.tree_shape import TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel

PROMPT = [3, 1, 7]


def toy(**changes):
    return ToyModel(**{"vocab_size": 24, "seed": 4, "sharpness": 2.5, "max_pass_tokens": 64} | changes)


def engine_of(widths=(2, 2, 1), **options):
    drafters = [ToyDrafter(toy(noise=0.4))] if widths else []
    return Engine(toy(), drafters=drafters, tree=TreeSpec(widths=widths), max_len=256, max_batch=4, **options)


def spoil(engine, monkeypatch, *, request_row, value=math.nan):
    """Make all logits of one row of the batch's requests no numbers."""
    forward = engine.model.forward

    def spoiled(batch, kv):
        logits = forward(batch, kv)
        logits[torch.from_numpy(batch.request_rows[batch.output_rows] == request_row)] = value
        return logits

    monkeypatch.setattr(engine.model, "forward", spoiled)


@pytest.mark.parametrize("logprobs", [None, 2])
def test_logits_that_are_no_numbers_end_only_their_request(logprobs, monkeypatch):  # case 19
    params = SamplingParams(max_tokens=12, logprobs=logprobs)
    engine = engine_of()
    ids = [engine.add(prompt, params) for prompt in ([1], [2], [3])]
    outputs = {chunk.request_id: chunk.output for chunk in engine.step()}
    spoil(engine, monkeypatch, request_row=1)
    while engine.has_work:
        outputs |= {chunk.request_id: chunk.output for chunk in engine.step()}
        monkeypatch.undo()
    for request_id, prompt in zip(ids, ([1], [2], [3]), strict=True):
        output, alone = outputs[request_id], engine_of().generate([prompt], params)[0]
        if request_id == ids[1]:
            assert output.finish_reason == "error" and "nan" in output.error and output.token_ids == alone.token_ids[:1]
            assert logprobs is None or output.logprobs == alone.logprobs[:1]
        else:
            assert output.token_ids == alone.token_ids and output.error is None
    assert not engine.cache.request_ids


def test_prompts_whose_logits_are_no_numbers_end_in_their_first_chunk(monkeypatch):
    engine = engine_of(pass_tokens=8)
    spoil(engine, monkeypatch, request_row=0)
    (output,) = engine.generate([[1] * 20], SamplingParams(max_tokens=4, prompt_logprobs=0))
    assert output.finish_reason == "error" and output.token_ids == [] and output.prompt_logprobs == [None]
    assert not engine.has_work and not engine.cache.request_ids


def test_a_users_mistake_is_raised_where_it_was_made_and_nowhere_else():
    engine = engine_of()
    wrong = SamplingParams(logits_processors=[lambda tokens, logits: logits[:3]])
    fine = engine.stream([5], SamplingParams(max_tokens=20))
    tokens = list(next(fine).token_ids)
    bad = engine.add(PROMPT, wrong)
    for chunk in fine:
        tokens += chunk.token_ids
    assert tokens == engine_of(()).generate([[5]], SamplingParams(max_tokens=20))[0].token_ids
    assert engine.abort(bad) is None, "it has ended"
    for call in (lambda: engine.generate([PROMPT, [5]], wrong), lambda: list(engine.stream(PROMPT, wrong))):
        with pytest.raises(UsageError, match="processor"):
            call()
    assert not engine.has_work and not engine.cache.request_ids


class Broken:
    """A grammar that allows everything for three tokens and then breaks in one way or another."""

    def __init__(self, how, length=0):
        self._how = how
        self._length = length

    def start(self, tokenizer, *, vocab_limit, end_token_ids):
        return self

    def allowed(self):
        if self._length == 3 and self._how == "allowed raises":
            raise KeyError("no rule")
        return np.ones(3 if self._length == 3 and self._how == "a short mask" else 24, dtype=bool)

    def advance(self, token):
        if self._length == 2 and self._how == "advance raises":
            raise KeyError("no rule")
        return 5 if self._length == 2 and self._how == "no state" else Broken(self._how, min(self._length + 1, 3))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("allowed raises", "raised KeyError: 'no rule'"),
        ("advance raises", "raised KeyError: 'no rule'"),
        ("no state", r"must give states .* gave 5"),
        ("a short mask", r"masks of shape \[24\]"),
    ],
)
@pytest.mark.parametrize("widths", [(), (2, 2, 1)])
def test_a_grammar_at_fault_ends_its_own_request_alone(how, message, widths):
    engine = engine_of(widths, eos_token_ids=[23])
    other = engine.add([5], SamplingParams(max_tokens=20, ignore_eos=True))
    broken = engine.add([6], SamplingParams(max_tokens=20, grammar=Broken(how)))
    outputs = {}
    while engine.has_work:
        outputs |= {chunk.request_id: chunk.output for chunk in engine.step()}
    assert outputs[broken].finish_reason == "error" and re.search(message, outputs[broken].error)
    assert outputs[other].finish_reason == "length" and len(outputs[other].token_ids) == 20


def test_a_grammar_without_a_start_is_refused():
    grammar = Broken("")
    for start, message in ((lambda *args, **options: None, "gave None"), (lambda *args, **options: 5, "gave 5")):
        grammar.start = start
        with pytest.raises(UsageError, match=message):
            engine_of(eos_token_ids=[23]).generate([[1]], SamplingParams(grammar=grammar))


def test_a_step_torn_before_it_is_applied_leaves_no_prompt_entries_behind(monkeypatch):
    engine = engine_of(pass_tokens=8)
    request_id = engine.add([1] * 20, SamplingParams(max_tokens=3, prompt_logprobs=0))
    with monkeypatch.context() as patch:
        patch.setattr(engine._loop, "_apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    output = None
    while engine.has_work:
        output = next((chunk.output for chunk in engine.step() if chunk.request_id == request_id), output)
    assert len(output.prompt_logprobs) == 20


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_mistake_of_one_request_leaves_the_outputs_of_all():
    engine = engine_of(eos_token_ids=[23])
    params = [
        SamplingParams(max_tokens=2, ignore_eos=True),
        SamplingParams(grammar=Broken("advance raises")),
        SamplingParams(max_tokens=50),
    ]
    with pytest.raises(RequestMistake, match="raised KeyError") as caught:
        engine.generate([[5], [6], [7]], params)
    assert [output.finish_reason for output in caught.value.outputs] == ["length", "error", "abort"]
    assert isinstance(caught.value, UsageError) and len(caught.value.outputs[0].token_ids) == 2
    assert not engine.has_work and not engine.cache.request_ids
