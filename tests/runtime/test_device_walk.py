"""Engines whose device decides say what engines say that decide themselves."""

import math

import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel

walker = pytest.importorskip("flexspec.codegen.cuda.walker", reason="no Triton here")

PROMPTS = [[3, 1, 7], [5], [2, 2, 9, 4]]
GREEDY = SamplingParams(max_tokens=20)
SEEDED = SamplingParams(max_tokens=20, temperature=0.9, seed=5)
MIXED = [GREEDY, SEEDED, SamplingParams(max_tokens=20, temperature=0.7, top_p=0.8, seed=1)]
CUT = [SamplingParams(max_tokens=20, temperature=0.9, seed=5, **cut) for cut in ({"top_k": 5}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.7})]


def toy(**changes):
    return ToyModel(**{"vocab_size": 24, "seed": 4, "sharpness": 2.5, "max_pass_tokens": 64} | changes)


class CountingWalker(walker.KernelWalker):
    """Notes how many trees it walks at once."""

    def __init__(self, count):
        super().__init__()
        self._count = count

    def launch(self, logits, trees):
        self._count.append(len(trees.node_starts) - 1)
        return super().launch(logits, trees)


def engine_of(*, on_device, count=None, **options):
    model = toy()
    if on_device:
        model.tree_walker = CountingWalker([] if count is None else count)
    return Engine(model, drafters=[ToyDrafter(toy(noise=0.4))], tree=TreeSpec(widths=(2, 2, 1)), max_len=256, max_batch=4, **options)


@pytest.mark.parametrize(("params", "walked"), [(GREEDY, 3), (SEEDED, 3), (MIXED, 3), (CUT, 3)], ids=["greedy", "seeded", "mixed", "cut"])
def test_the_same_text(params, walked):
    count = []
    outputs = engine_of(on_device=True, count=count).generate(PROMPTS, params)
    expected = engine_of(on_device=False).generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert [output.stats.accepted for output in outputs] == [output.stats.accepted for output in expected]
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)
    assert max(count) == walked


@pytest.mark.parametrize("changes", [{"logprobs": 2}, {"prompt_logprobs": 1}, {"logit_bias": {3: 2.0}}])
def test_what_the_device_can_not_decide_comes_to_the_host(changes):
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=3, **changes)
    count = []
    outputs = engine_of(on_device=True, count=count).generate(PROMPTS, params)
    expected = engine_of(on_device=False).generate(PROMPTS, params)
    for output, other in zip(outputs, expected, strict=True):
        assert (output.token_ids, output.logprobs, output.prompt_logprobs) == (other.token_ids, other.logprobs, other.prompt_logprobs)
    assert bool(count) == ("prompt_logprobs" in changes)


def test_logits_that_are_no_numbers_end_only_their_request(monkeypatch):
    engine = engine_of(on_device=True)
    ids = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    engine.step()
    forward = engine.model.forward

    def spoiled(batch, kv):
        logits = forward(batch, kv)
        logits[torch.from_numpy(batch.request_rows[batch.output_rows] == 1)] = math.nan
        return logits

    monkeypatch.setattr(engine.model, "forward", spoiled)
    outputs = {chunk.request_id: chunk.output for chunk in engine.step()}
    monkeypatch.undo()
    assert outputs[ids[1]].finish_reason == "error" and "not finite" in outputs[ids[1]].error
    assert [outputs[ids[place]] for place in (0, 2)] == [None, None]
