"""The engine with the drafters that ship: lossless with each, and full acceptance where that is due."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from engine_reference import plain, run_checked
from flexspec.config import SamplingParams
from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.registry import make_drafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeLimits, TreeSpec
from toy_model import ToyModel

PROMPTS = [[3], list(range(20)), [5, 6, 7] * 15]
STATIC = [TreeSpec(widths=(1, 1, 1, 1)), TreeSpec(widths=(2, 2, 1))]
ADAPTIVE = TreeLimits(depth=4, branch=2, budget=12)


@pytest.fixture
def _time_is_free(monkeypatch):
    """Adaptive trees that draft and verify all they can: toy models take as long to draft as to verify, so nothing would pay."""
    monkeypatch.setattr(Adaptation, "tokens_per_s", property(lambda self: 0.0))


def toy(**changes):
    """Depends on the last two tokens alone, so that its text repeats itself and lookup finds something."""
    return ToyModel(**{"vocab_size": 24, "seed": 3, "memory": 2, "max_pass_tokens": 64} | changes)


def ssm(*, name="ssm", max_requests=4, block_size=512, alpha=None, model=None, **changes):
    return SsmDrafter(name, model or toy(**changes), max_requests=max_requests, block_size=block_size, alpha=alpha)


DRAFTERS = {
    "plain": lambda: [],
    "ngram": lambda: [NgramDrafter()],
    "suffix": lambda: [make_drafter("suffix")],
    "ssm": lambda: [ssm(noise=0.3)],
    "half trusted": lambda: [ssm(noise=0.3, alpha=0.5)],
    "unrelated": lambda: [ssm(seed=77)],
    "merged": lambda: [ssm(noise=0.3), NgramDrafter(), ssm(name="second", noise=0.5, noise_seed=5)],
}


def check_tokens(drafters, tree):
    """The same tokens as plain at temperatures 0 and 0.9, alone and in a batch; the numbers of accepted and drafted nodes."""
    accepted = drafted = 0
    for temperature in (0.0, 0.9):
        params = SamplingParams(max_tokens=24, temperature=temperature, seed=9)
        expected = [plain(toy(), prompt, params) for prompt in PROMPTS]
        for max_batch, pass_tokens in ((1, 64), (3, 24)):
            records = []
            engine = Engine(
                toy(), drafters=drafters(), tree=tree, max_len=256, max_batch=max_batch, pass_tokens=pass_tokens, observer=records.append
            )
            prompts = {engine.add(prompt, params): prompt for prompt in PROMPTS}
            assert list(run_checked(engine, prompts).values()) == expected
            accepted += sum(len(record.path) - 1 for record in records)
            drafted += sum(record.tree.num_drafted for record in records)
    return accepted, drafted


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_same_tokens_with_every_drafter_tree_and_batch(drafter):  # cases 1, 22, 34
    for tree in STATIC:
        accepted, drafted = check_tokens(DRAFTERS[drafter], tree)
        assert 0 < accepted < drafted or (drafter == "plain" and drafted == 0)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_same_tokens_with_adaptive_trees(drafter, _time_is_free):  # cases 1, 22, 34
    accepted, drafted = check_tokens(DRAFTERS[drafter], ADAPTIVE)
    assert 0 < accepted < drafted or (drafter == "plain" and drafted == 0)


def test_the_same_tokens_with_adaptive_trees_that_go_by_the_clock():
    check_tokens(DRAFTERS["merged"], ADAPTIVE)


@pytest.mark.parametrize("widths", [(1, 1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_model_as_its_own_ssm_accepts_the_full_depth(widths, temperature):  # case 33
    drafter = ssm(memory=None, alpha=1.0)
    engine = Engine(toy(memory=None), drafters=[drafter], tree=TreeSpec(widths=widths), max_len=512, max_batch=3)
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=200, temperature=temperature, seed=2))
    assert [output.stats.steps for output in outputs] == [1 + -(-199 // (len(widths) + 1))] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_model_as_its_own_ssm_accepts_adaptive_trees_to_the_last_level(temperature, _time_is_free):  # case 33
    records = []
    engine = Engine(
        toy(memory=None), drafters=[ssm(memory=None, alpha=1.0)], tree=ADAPTIVE, max_len=512, max_batch=3, observer=records.append
    )
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=200, temperature=temperature, seed=2))
    assert all(len(record.path) == 1 + max(record.tree.depths()) for record in records)
    assert all(output.stats.steps <= 1 + 199 // 5 + 5 for output in outputs), "it soon learns that all four levels hold"


@pytest.mark.parametrize("tree", [TreeSpec(widths=(1, 1, 1)), TreeLimits(depth=3, branch=1, budget=6)], ids=["static", "adaptive"])
def test_its_own_ssm_accepts_everything_also_next_to_lookup(tree, _time_is_free):  # case 33, after a lookup draft
    engine = Engine(toy(), drafters=[NgramDrafter(), ssm(max_requests=3)], tree=tree, max_len=512, max_batch=3)
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=200))
    fewest = 1 + -(-199 // 4)
    assert all(fewest <= output.stats.steps <= fewest + (2 if isinstance(tree, TreeLimits) else 0) for output in outputs)


class HalfToy(ToyModel):
    """Knows the tokens of one half of the vocabulary only: the target's own logits there, and nothing elsewhere."""

    half = 0

    def logits_of(self, path):
        logits = super().logits_of(path)
        logits[np.arange(self.vocab_size) % 2 != self.half] = -20.0
        return logits


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [TreeSpec(widths=(2, 1, 1)), ADAPTIVE], ids=["static", "adaptive"])
def test_two_halves_of_the_vocabulary_are_better_than_one(tree, temperature, _time_is_free):  # bar 5
    def halves():
        for half in (0, 1):
            model = HalfToy(vocab_size=24, seed=3, max_pass_tokens=64)
            model.half = half
            yield ssm(name=f"half {half}", model=model)

    def steps(drafters):
        engine = Engine(toy(memory=None), drafters=drafters, tree=tree, max_len=256, max_batch=3)
        outputs = engine.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == expected
        return sum(output.stats.steps for output in outputs)

    params = SamplingParams(max_tokens=30, temperature=temperature, seed=4)
    expected = [plain(toy(memory=None), prompt, params) for prompt in PROMPTS]
    even, odd = halves()
    alone = min(steps([even]), steps([odd]))
    assert steps(list(halves())) < 0.9 * alone


@pytest.mark.parametrize("prompt_length", [60, 64, 100])
@pytest.mark.parametrize("tree", [TreeSpec(widths=(1, 1, 1)), ADAPTIVE], ids=["static", "adaptive"])
def test_past_the_range_of_the_draft_it_decodes_plainly(prompt_length, tree, _time_is_free):  # case 11
    prompt, params = [token % 24 for token in range(prompt_length)], SamplingParams(max_tokens=30)
    drafter = ssm(max_positions=64)
    engine = Engine(toy(max_positions=256), drafters=[drafter], tree=tree, max_len=256)
    output = engine.generate([prompt], params)[0]
    assert output.token_ids == plain(toy(), prompt, params)
    assert drafter.stats.fallbacks > 0 and (output.stats.accepted > 0) == (prompt_length < 64)


def test_up_to_the_last_slot(_time_is_free):  # case 12
    params = SamplingParams(max_tokens=50)
    drafter = ssm(block_size=64 + ADAPTIVE.num_nodes)
    output = Engine(toy(), drafters=[drafter], tree=ADAPTIVE, max_len=64).generate([list(range(20)) * 2], params)[0]
    assert (len(output.token_ids), output.finish_reason) == (24, "length") and drafter.stats.fallbacks == 0


def test_more_requests_than_the_drafter_takes():
    params = SamplingParams(max_tokens=20)
    engine = Engine(toy(), drafters=[ssm(max_requests=1)], tree=TreeSpec(widths=(2, 1)), max_len=256, max_batch=3)
    outputs = engine.generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [plain(toy(), prompt, params) for prompt in PROMPTS]
    assert sum(output.stats.accepted > 0 for output in outputs) >= 1


def test_stochastic_verification_repeats_with_its_seed_and_its_batch():
    def run(seed):
        engine = Engine(toy(), drafters=[ssm(noise=0.3)], tree=TreeSpec(widths=(2, 2)), max_len=256, verifier_name="mss")
        outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=30, temperature=0.9, seed=seed))
        assert all(0 < output.stats.accepted < output.stats.drafted for output in outputs)
        return [output.token_ids for output in outputs]

    assert run(1) == run(1) != run(2)


def test_threads_may_share_an_engine():
    engine = Engine(toy(), drafters=[ssm(noise=0.3), NgramDrafter()], tree=TreeSpec(widths=(2, 1)), max_batch=2, max_len=256)
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=4)
    prompts = [[token, token + 1] for token in range(6)]
    with ThreadPoolExecutor(len(prompts)) as threads:
        outputs = list(threads.map(lambda prompt: engine.generate([prompt], params)[0], prompts))
    assert [output.token_ids for output in outputs] == [plain(toy(), prompt, params) for prompt in prompts]
    assert not engine.has_work
