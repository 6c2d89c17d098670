"""Requests that lose their slots for want of blocks go on later as if nothing had happened."""

from functools import cache

import pytest

from engine_reference import plain, run_checked
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.request import Phase, Request
from flexspec.tree_shape import PLAIN, TreeLimits, TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel
from toy_states import StatefulToy, ToyHead, head_drafter
from toy_tokenizer import letters

VOCAB = 24
PROMPTS = [[3], list(range(20)), [5, 6, 7] * 10]
MORE = [[9], [8, 4], *PROMPTS, [7] * 5]
CHAIN, TREE, LIMITS = TreeSpec(widths=(1, 1, 1)), TreeSpec(widths=(2, 2, 1)), TreeLimits(depth=4, branch=2, budget=8)


def toy(**changes):
    """Repeats itself, so that lookup finds something."""
    return ToyModel(**{"vocab_size": VOCAB, "seed": 3, "memory": 2} | changes)


def ssm(**changes):
    return SsmDrafter("ssm", toy(**changes), max_requests=6, block_size=256, alpha=1.0)


DRAFTERS = {
    "plain": lambda: [],
    "ngram": lambda: [NgramDrafter()],
    "merged": lambda: [ssm(noise=0.3), NgramDrafter()],
}


def engine_of(model, drafters, tree=PLAIN, *, room=108, block_size=4, **options):
    """An engine whose cache has room for so many tokens."""
    sizes = {"max_batch": 4, "max_len": 84, "num_blocks": None if block_size is None else room // block_size}
    return Engine(model, drafters=drafters, tree=tree, block_size=block_size, **(sizes | options))


@pytest.fixture
def preempted(monkeypatch):
    """What every preemption met: the phase, and how much of the text was computed."""
    seen = []
    preempt = Request.preempt

    def noted(self):
        seen.append((self.phase, self.num_computed, self.prompt_length))
        preempt(self)

    monkeypatch.setattr(Request, "preempt", noted)
    return seen


def described(outputs):
    return [(output.token_ids, output.text, output.finish_reason, output.logprobs, output.prompt_logprobs) for output in outputs]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("tree", [CHAIN, TREE, LIMITS], ids=str)
def test_the_same_text_with_every_drafter(drafter, tree, preempted, time_is_free):
    for temperature in (0.0, 0.9):
        params = SamplingParams(max_tokens=50, temperature=temperature, seed=9)
        engine = engine_of(toy(), DRAFTERS[drafter](), tree)
        prompts = {engine.add(prompt, params): prompt for prompt in MORE}
        assert list(run_checked(engine, prompts).values()) == [plain(toy(), prompt, params) for prompt in MORE]
        seen = engine.statistics()
        assert seen.preemptions >= 2 and seen.kv_blocks_used == 0 and seen.kv_blocks == 27
        assert drafter == "plain" or 0 < seen.accepted < seen.drafted
    assert {phase for phase, *_ in preempted} >= {Phase.DECODE}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", [CHAIN, TREE, LIMITS], ids=str)
def test_the_model_as_its_own_draft_accepts_everything_also_after_preemption(tree, temperature, time_is_free):  # case 33
    records = []
    engine = engine_of(toy(memory=None), [ssm(memory=None)], tree, observer=records.append)
    engine.generate(MORE, SamplingParams(max_tokens=50, temperature=temperature, seed=2))
    assert engine.statistics().preemptions >= 2
    assert all(len(record.path) == 1 + max(record.tree.depths()) for record in records)
    assert sum(len(record.path) > tree.depth for record in records) > 10, "trees are made small only where blocks are scarce"


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=str)
def test_a_head_reads_the_states_of_the_whole_text_again(tree):
    """The toy head asserts that every state follows from the one before, and accepts everything if it has them all."""
    records = []
    model, head = StatefulToy(vocab_size=VOCAB, seed=3), ToyHead(vocab_size=VOCAB, seed=3)
    engine = engine_of(model, [head_drafter(head, alpha=1.0)], tree, observer=records.append)
    prompts = {engine.add(prompt, SamplingParams(max_tokens=50)): prompt for prompt in MORE}
    assert list(run_checked(engine, prompts).values()) == [plain(model, prompt, SamplingParams(max_tokens=50)) for prompt in MORE]
    assert engine.statistics().preemptions >= 2
    assert all(len(record.path) == 1 + max(record.tree.depths()) for record in records)


RULES = [
    SamplingParams(max_tokens=20, temperature=1.1, seed=6, n=2, logprobs=1, prompt_logprobs=0),
    SamplingParams(max_tokens=30, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=30, temperature=0.8, seed=4, frequency_penalty=0.7, min_tokens=12, stop_token_ids=(7, 9), logprobs=0),
    SamplingParams(max_tokens=30, temperature=0.9, seed=5, stop=("bx", "qq"), repetition_penalty=1.3, prompt_logprobs=0),
    SamplingParams(max_tokens=30, prompt_logprobs=2),
]


@cache
def with_rules(**options):
    model, draft = toy(memory=None), toy(memory=None, noise=0.4)
    engine = engine_of(model, [ToyDrafter(draft)], TreeSpec(widths=(2, 1)), tokenizer=letters(VOCAB), **options)
    return engine.generate(2 * [[1, 2], *PROMPTS, [9] * 33], 2 * RULES), engine


@pytest.mark.parametrize("pass_tokens", [5, 64])
@pytest.mark.parametrize(("block_size", "room"), [(4, 88), (1, 88), (16, 96)])
def test_what_goes_with_the_text_is_the_same_too(block_size, room, pass_tokens, preempted):
    """Log probabilities, of prompts as well, penalties, stop rules, and several completions."""
    expected, ample = with_rules(block_size=None)
    assert not ample.statistics().preemptions
    preempted.clear()
    found, scarce = with_rules(block_size=block_size, room=room, pass_tokens=pass_tokens)
    assert described(found) == described(expected)
    assert scarce.statistics().preemptions == len(preempted) >= 3
    for output, other in zip(found, expected, strict=True):
        assert output.stats.new_tokens == len(output.token_ids) == other.stats.new_tokens
        assert 0 < output.stats.queued_s and 0 < output.stats.prefill_s and 0 < output.stats.forward_s <= output.stats.decode_s
    if pass_tokens == 5:
        assert any(phase is Phase.PREFILL and 0 < computed < length for phase, computed, length in preempted), "none in mid-prompt"
    assert any(phase is Phase.DECODE for phase, *_ in preempted)


def test_a_stream_repeats_nothing(preempted):
    params = SamplingParams(max_tokens=40, logprobs=0)
    engine = engine_of(toy(), [ssm(noise=0.3)], TREE, tokenizer=letters(VOCAB))
    first = [engine.add(prompt, params) for prompt in PROMPTS[1:3]]
    chunks = list(engine.stream([1, 2], params))
    assert len(preempted) >= 2 and first[1] not in engine.cache.request_ids
    expected = plain(toy(), [1, 2], params)
    assert [token for chunk in chunks for token in chunk.token_ids] == expected == chunks[-1].output.token_ids
    assert "".join(chunk.text for chunk in chunks) == letters(VOCAB).decode(expected, skip_special_tokens=True)
    assert [entry for chunk in chunks for entry in chunk.logprobs] == chunks[-1].output.logprobs


def test_one_that_was_preempted_can_be_aborted():
    params = SamplingParams(max_tokens=40)
    drafter = ToyDrafter(toy(noise=0.3))
    engine = engine_of(toy(), [drafter], CHAIN)
    ids = [engine.add(prompt, params) for prompt in PROMPTS[:3]]
    produced = {request_id: [] for request_id in ids}
    while not engine.statistics().preemptions:
        for chunk in engine.step():
            produced[chunk.request_id] += chunk.token_ids
    assert drafter.released == [ids[2]] and ids[2] not in engine.cache.request_ids
    output = engine.abort(ids[2])
    assert output.token_ids == produced[ids[2]] and len(output.token_ids) > 1 and output.stats.decode_s > 0
    while engine.has_work:
        for chunk in engine.step():
            produced[chunk.request_id] += chunk.token_ids
    assert [produced[request_id] for request_id in ids[:2]] == [plain(toy(), prompt, params) for prompt in PROMPTS[:2]]
    assert engine.cache.num_free_blocks == engine.statistics().kv_blocks


def test_trees_get_smaller_before_anyone_is_preempted():
    """Two requests of 20 tokens each, and 12 blocks of 4."""
    records = []
    engine = engine_of(toy(), [ToyDrafter(toy(memory=None))], TREE, room=48, max_len=24, pass_tokens=24, observer=records.append)
    outputs = engine.generate([[1, 2], [3, 4]], SamplingParams(max_tokens=18))
    assert not engine.statistics().preemptions
    nodes = {record.tree.num_drafted for record in records if len(record.token_ids)}
    assert {2, 10} <= nodes and [len(output.token_ids) for output in outputs] == [18, 18]


def test_a_full_cache_does_not_thrash():
    """However many wait, what is computed twice stays a fraction of the whole."""
    model, params = toy(), SamplingParams(max_tokens=30)
    engine = engine_of(model, [], room=160, max_batch=8)
    prompts = [[token, *range(12)] for token in range(20)]
    outputs = engine.generate(prompts, params)
    assert [output.token_ids for output in outputs] == [plain(toy(), prompt, params) for prompt in prompts]
    assert 0 < engine.statistics().preemptions and model.num_tokens < 1.6 * 20 * (13 + 29)


def test_steps_that_compute_a_text_again_teach_nothing(monkeypatch, time_is_free):
    """They count as steps that read prompts, of which adaptive trees learn neither costs nor rates."""
    again, steps = [], []
    computed, end_step = Request.computed, Adaptation.end_step

    def note_computed(self, count):
        again.append(self.has_new_tokens)
        computed(self, count)

    def note_end(self, *, has_prompts, **seen):
        steps.append((has_prompts, any(again)))
        again.clear()
        end_step(self, has_prompts=has_prompts, **seen)

    monkeypatch.setattr(Request, "computed", note_computed)
    monkeypatch.setattr(Adaptation, "end_step", note_end)
    engine = engine_of(toy(max_pass_tokens=16), [ssm()], LIMITS)
    engine.generate(MORE, SamplingParams(max_tokens=50))
    assert engine.statistics().preemptions >= 2
    assert set(steps) == {(False, False), (True, False), (True, True)}


def test_a_drafter_that_has_to_catch_up_after_preemption_is_not_timed_like_others(monkeypatch, time_is_free):
    steady = []
    drafted = Adaptation.drafted

    def note(self, *arguments, is_steady):
        steady.append(is_steady)
        drafted(self, *arguments, is_steady=is_steady)

    monkeypatch.setattr(Adaptation, "drafted", note)
    engine = engine_of(toy(), [ssm()], LIMITS)
    request_id = engine.add([1, 2], SamplingParams(max_tokens=50))
    for step in range(7):
        if step == 4:
            engine._loop.speculator.release(request_id)
        engine.step()
    assert steady == [False, True, True, False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0 is not allowed: give 1 or more"),
        ({"block_size": 4, "num_blocks": 0}, "num_blocks=0 is not allowed: give 1 or more"),
        (
            {"block_size": 4, "num_blocks": 18},
            "num_blocks=18 of block_size=4 hold 72 tokens, and one request of max_len=64 with a tree of 10 drafted tokens takes 74: "
            "give 19 blocks or more",
        ),
        ({"block_size": None, "num_blocks": 0}, "num_blocks=0 is not allowed"),
    ],
)
def test_a_cache_must_hold_one_request(options, message):
    Engine(toy(), drafters=[ssm()], tree=TREE, max_len=64, block_size=4, num_blocks=19)
    with pytest.raises(UsageError, match=message):
        Engine(toy(), drafters=[ssm()], tree=TREE, max_len=64, **options)


def test_the_suite_of_the_engine_runs_with_preemption():
    engine = Engine(toy(), max_batch=3, max_len=64)
    engine.generate(PROMPTS[:3], SamplingParams(max_tokens=30))
    assert engine.cache.storage.block_size == 4 and engine.statistics().preemptions >= 3
