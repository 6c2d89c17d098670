"""Engines whose device makes the trials of drafted tokens say what engines say whose verifiers make them."""

import math

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.registry import VERIFIERS
from flexspec.tree_shape import TreeSpec
from toy_model import ToyModel

walker = pytest.importorskip("flexspec.codegen.cuda.walker", reason="no Triton here")

PROMPTS = [[3, 1, 7], [5], [2, 2, 9, 4]]
BY_CHANCE = ("mss", "without_replacement", "point_mass", "traversal")
TRUNCATIONS = [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.9, "min_p": 0.02}]


def toy(**changes):
    return ToyModel(**{"vocab_size": 24, "seed": 4, "sharpness": 1.5, "max_pass_tokens": 64} | changes)


class OnDevice(walker.KernelWalker):
    """Keeps no logits from a device's walker, and notes how many trees were tried at once."""

    def __init__(self):
        super().__init__()
        self.counts = []
        launch = self.trials.launch

        def counted(logits, trees):
            self.counts.append(len(trees.node_starts) - 1)
            return launch(logits, trees)

        self.trials.launch = counted


def engine_of(verifier, *, on_device, widths=(3, 2, 1), **options):
    model = toy()
    if on_device:
        model.tree_walker = OnDevice()
    drafters = [SsmDrafter("ssm", toy(noise=0.4), max_requests=4, block_size=96)] if widths else []
    return Engine(model, drafters=drafters, verifier_name=verifier, tree=TreeSpec(widths=widths), max_len=80, max_batch=4, **options)


def assert_alike(verifier, params, *, tried, **options):
    engine = engine_of(verifier, on_device=True, **options)
    outputs = engine.generate(PROMPTS, params)
    expected = engine_of(verifier, on_device=False, **options).generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert [output.stats.accepted for output in outputs] == [output.stats.accepted for output in expected]
    assert max(engine.model.tree_walker.counts, default=0) == tried
    return outputs


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("verifier", BY_CHANCE)
def test_the_same_text(verifier, truncation):
    outputs = assert_alike(verifier, SamplingParams(max_tokens=12, temperature=1.1, seed=5, **truncation), tried=3)
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)


@pytest.mark.parametrize("verifier", BY_CHANCE)
def test_without_drafts_too(verifier):
    assert_alike(verifier, SamplingParams(max_tokens=8, temperature=0.8, seed=2, top_p=0.9), tried=3, widths=())


@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_requests_that_walk_and_such_that_need_the_host_share_the_pass(verifier):
    sampled = {"max_tokens": 16, "temperature": 0.9, "seed": 7}
    params = [SamplingParams(max_tokens=16), SamplingParams(**sampled), SamplingParams(**sampled, logprobs=1)]
    assert_alike(verifier, params, tried=1)


def test_a_verifier_of_somebody_else_decides_itself(monkeypatch):
    class Contrary(MssVerifier):
        """Accepts nothing."""

        def verify(self, tree, logits, sampler, index):
            verdict = super().verify(type(tree).root(tree.tokens[0]), logits, sampler, index)
            assert list(verdict.path) == [0]
            return verdict

    monkeypatch.setattr(VERIFIERS, "_things", {**VERIFIERS._things, "contrary": Contrary})
    outputs = assert_alike("contrary", SamplingParams(max_tokens=8, temperature=1.0, seed=1), tried=0)
    assert not any(output.stats.accepted for output in outputs)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_logits_that_are_no_numbers_end_only_their_request(verifier, wrong, monkeypatch):
    engine = engine_of(verifier, on_device=True)
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3, top_p=0.9)
    ids = [engine.add(prompt, params) for prompt in PROMPTS]
    engine.step()
    forward = engine.model.forward

    def spoiled(batch, kv):
        logits = forward(batch, kv)
        logits[torch.from_numpy(batch.request_rows[batch.output_rows] == 1)] = wrong
        return logits

    monkeypatch.setattr(engine.model, "forward", spoiled)
    outputs = {chunk.request_id: chunk.output for chunk in engine.step()}
    assert outputs[ids[1]].finish_reason == "error" and "not finite" in outputs[ids[1]].error
    assert [outputs[ids[place]] for place in (0, 2)] == [None, None]


@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_logits_that_nobody_would_read_may_be_anything(verifier, monkeypatch):
    """As on the host: the nodes that a verifier goes by are those of the text it emits, but for such it looks at in vain."""
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    texts = []
    for on_device in (False, True):
        engine = engine_of(verifier, on_device=on_device)
        forward = engine.model.forward
        rng = np.random.default_rng(1)

        def spoiled(batch, kv, forward=forward, rng=rng):
            logits = forward(batch, kv)
            logits[torch.from_numpy(rng.random(len(logits)) < 0.15)] = math.nan
            return logits

        monkeypatch.setattr(engine.model, "forward", spoiled)
        outputs = engine.generate(PROMPTS, params)
        texts.append([(output.token_ids, output.finish_reason) for output in outputs])
    assert texts[0] == texts[1]
    assert "error" in {reason for _, reason in texts[0]} and max(len(tokens) for tokens, _ in texts[0]) > 2
