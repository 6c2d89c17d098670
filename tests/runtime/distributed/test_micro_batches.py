"""Steps that overlap, over a model of which another rank has a part: the same texts, and the same caches there."""

import pytest
import torch

from engine_reference import plain, run_checked
from flexspec.config import SamplingParams
from flexspec.runtime.distributed.outcomes import tell
from flexspec.runtime.distributed.staged_model import StagedModel
from flexspec.runtime.distributed.worker import Worker
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.drafters.suffix import SuffixDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.scheduler import Scheduler
from flexspec.tree_shape import PLAIN, TreeLimits, TreeSpec
from one_process import OneProcess
from toy_model import ToyModel
from toy_states import StatefulToy, ToyHead, head_drafter
from toy_tokenizer import letters

VOCAB = 24
PROMPTS = [[3], list(range(20)), [5, 6, 7] * 10, [9], [8, 4], [7] * 5, [1, 2]]
CHAIN, TREE, LIMITS = TreeSpec(widths=(1, 1, 1)), TreeSpec(widths=(2, 2, 1)), TreeLimits(depth=4, branch=2, budget=8)


def toy(**changes):
    return ToyModel(**{"vocab_size": VOCAB, "seed": 3, "memory": 2} | changes)


def ssm(**changes):
    return SsmDrafter("ssm", toy(**changes), max_requests=6, block_size=256, alpha=1.0)


DRAFTERS = {
    "none": lambda: [],
    "lookup": lambda: [NgramDrafter(), SuffixDrafter()],
    "ssm": lambda: [ssm(noise=0.3), NgramDrafter()],
}


class Divided:
    """An engine whose model has its other part on a worker, which serves at the end."""

    def __init__(self, micro_batches, *, drafters=(), tree=PLAIN, model=None, **options):
        self.ranks = OneProcess()
        self.worker = Worker(toy(memory=None), self.ranks, driver=0)
        staged = StagedModel(toy() if model is None else model, self.ranks, workers=[1])
        sizes = {"max_batch": 5, "max_len": 90} | options
        self.engine = Engine(staged, drafters=drafters, tree=tree, micro_batches=micro_batches, **sizes)
        self.most_under_way = 0
        start = staged.start

        def counted(batch, kv):
            started = start(batch, kv)
            self.most_under_way = max(self.most_under_way, self.passes_under_way)
            return started

        staged.start = counted

    @property
    def passes_under_way(self):
        return len(self.engine.model._under_way)

    def caches_agree(self) -> bool:
        """Whether the worker, once it has done all that it was told, has the driver's cache. Its own model checks what every token sees."""
        tell(self.ranks, [1], "ended")
        assert self.worker.serve() == "ended"
        (cache,) = self.worker._caches.values()
        return torch.equal(cache.keys, self.engine.cache.storage.keys)


def described(outputs):
    return [(output.token_ids, output.text, output.finish_reason, output.logprobs, output.prompt_logprobs) for output in outputs]


@pytest.mark.parametrize(("drafter", "tree"), [("none", PLAIN), ("lookup", TREE), ("ssm", CHAIN), ("ssm", LIMITS)], ids=str)
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_the_same_texts_whatever_overlaps(micro_batches, drafter, tree, time_is_free):
    accepted = drafted = 0
    for temperature, blocks in ((0.0, {}), (0.9, {"block_size": 4, "num_blocks": 26})):
        params = SamplingParams(max_tokens=25, temperature=temperature, seed=9)
        divided = Divided(micro_batches, drafters=DRAFTERS[drafter](), tree=tree, **blocks)
        outputs = divided.engine.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == [plain(toy(), prompt, params) for prompt in PROMPTS]
        seen = divided.engine.statistics()
        accepted, drafted = accepted + seen.accepted, drafted + seen.drafted
        assert divided.most_under_way == micro_batches and seen.kv_blocks_used == 0
        assert seen.preemptions or not blocks
        assert divided.caches_agree()
    assert drafter == "none" or 0 < accepted < drafted


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=str)
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_the_model_as_its_own_draft_accepts_everything(micro_batches, tree):  # case 33
    records = []
    divided = Divided(micro_batches, drafters=[ssm(memory=None)], tree=tree, model=toy(memory=None), observer=records.append)
    divided.engine.generate(PROMPTS, SamplingParams(max_tokens=25, temperature=1.0, seed=2))
    assert all(len(record.path) == 1 + max(record.tree.depths()) for record in records)
    assert sum(len(record.path) > tree.depth for record in records) > 10
    assert divided.caches_agree()


def test_heads_get_the_states_of_their_own_step():
    """The toy head asserts that every state follows from the one before."""

    class Staged(StagedModel):
        hidden_states = property(lambda self: model.hidden_states)

    model, head = StatefulToy(vocab_size=VOCAB, seed=3), ToyHead(vocab_size=VOCAB, seed=3)
    staged = Staged(model, OneProcess(), workers=[1])
    staged.hidden_size = model.hidden_size
    engine = Engine(staged, drafters=[head_drafter(head, alpha=1.0)], tree=TREE, max_batch=5, max_len=90, micro_batches=2)
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=20))
    assert [output.token_ids for output in outputs] == [plain(model, prompt, SamplingParams(max_tokens=20)) for prompt in PROMPTS]
    assert engine.statistics().accepted > 0


def test_prompts_that_join_while_others_are_under_way():
    divided = Divided(2, drafters=[ssm(noise=0.3)], tree=TREE, pass_tokens=12)
    engine, prompts, chunks = divided.engine, {}, {}
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=3)
    for prompt in 2 * PROMPTS:
        prompts[engine.add(prompt, params)] = prompt
        for chunk in engine.step():
            chunks.setdefault(chunk.request_id, []).extend(chunk.token_ids)
    while engine.has_work:
        for chunk in engine.step():
            chunks.setdefault(chunk.request_id, []).extend(chunk.token_ids)
    assert chunks == {request_id: plain(toy(), prompt, params) for request_id, prompt in prompts.items()}
    assert divided.most_under_way == 2 and divided.caches_agree()


def test_the_cache_is_that_of_a_linear_prefill_after_every_step():  # case 6
    engine = Divided(2, drafters=[ssm(noise=0.3)], tree=TREE).engine
    params = SamplingParams(max_tokens=30)
    prompts = {engine.add(prompt, params): prompt for prompt in PROMPTS}
    assert list(run_checked(engine, prompts).values()) == [plain(toy(), prompt, params) for prompt in PROMPTS]


RULES = [
    SamplingParams(max_tokens=20, temperature=1.1, seed=6, n=2, logprobs=1, prompt_logprobs=0),
    SamplingParams(max_tokens=30, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=30, temperature=0.8, seed=4, frequency_penalty=0.7, min_tokens=12, stop_token_ids=(7, 9), logprobs=0),
    SamplingParams(max_tokens=30, temperature=0.9, seed=5, stop=("bx", "qq"), repetition_penalty=1.3, prompt_logprobs=0),
    SamplingParams(max_tokens=30, stop=("b", "cd")),
    SamplingParams(max_tokens=30, prompt_logprobs=2),
    SamplingParams(max_tokens=1),
]


def test_stops_penalties_and_log_probabilities_are_as_without_overlap():
    def outputs(micro_batches):
        engine = Divided(micro_batches, drafters=[ssm(noise=0.3)], tree=TREE, tokenizer=letters(VOCAB)).engine
        return described(engine.generate(PROMPTS, RULES))

    alone = outputs(1)
    assert {reason for _, _, reason, *_ in alone} == {"stop", "length"}
    assert outputs(2) == alone and outputs(3) == alone


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_a_request_that_is_aborted_while_its_pass_is_under_way_is_over_and_others_are_not_disturbed(micro_batches):
    divided = Divided(micro_batches, drafters=[ssm(noise=0.3)], tree=TREE, block_size=4, num_blocks=60)
    engine, params = divided.engine, SamplingParams(max_tokens=30)
    prompts = {engine.add(prompt, params): prompt for prompt in 2 * PROMPTS}
    chunks, aborted = {request_id: [] for request_id in prompts}, {}
    for step in range(1000):
        if not engine.has_work:
            break
        under_way = set(engine.cache.request_ids)
        for chunk in engine.step():
            assert chunk.request_id not in aborted
            chunks[chunk.request_id] += chunk.token_ids
            under_way.discard(chunk.request_id)
        if step % 7 == 4 and under_way and divided.passes_under_way:
            victim = min(under_way)
            aborted[victim] = engine.abort(victim)
            assert engine.abort(victim) is None
    assert 2 <= len(aborted) <= len(prompts) - 2
    for request_id, prompt in prompts.items():
        text = plain(toy(), prompt, params)
        if request_id in aborted:
            output = aborted[request_id]
            assert output.finish_reason == "abort" and output.token_ids == chunks[request_id] == text[: len(output.token_ids)]
        else:
            assert chunks[request_id] == text
    assert engine.cache.num_free_blocks == 60 and divided.caches_agree()


def test_what_is_under_way_when_all_requests_are_aborted_comes_to_its_end():
    divided = Divided(2, drafters=[ssm()], tree=TREE)
    engine = divided.engine
    for prompt in PROMPTS:
        engine.add(prompt, SamplingParams(max_tokens=30))
    for _ in range(5):
        engine.step()
    assert divided.passes_under_way
    for request_id in range(len(PROMPTS)):
        engine.abort(request_id)
    assert not divided.passes_under_way and engine.statistics().kv_blocks_used == 0
    params = SamplingParams(max_tokens=20)
    assert [output.token_ids for output in engine.generate(PROMPTS, params)] == [plain(toy(), prompt, params) for prompt in PROMPTS]
    assert divided.caches_agree()


def test_a_stream_that_is_closed_early_leaves_nothing_under_way():
    divided = Divided(2, drafters=[ssm()], tree=TREE)
    chunks = divided.engine.stream([3], SamplingParams(max_tokens=30))
    next(chunks)
    chunks.close()
    assert not divided.passes_under_way and divided.engine.statistics().kv_blocks_used == 0
    assert divided.caches_agree()


def test_a_pass_that_nobody_asks_for_is_run_before_the_next():
    """Ctrl-C at the end of `start` leaves one behind."""
    divided = Divided(1)
    engine = divided.engine
    (request,) = [engine.add([3, 4], SamplingParams(max_tokens=5))]
    start, torn = engine.model.start, []

    def interrupted(batch, kv):
        started = start(batch, kv)
        if not torn:
            torn.append(started)
            raise KeyboardInterrupt
        return started

    engine.model.start = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    text = [token for _ in range(9) for chunk in engine.step() for token in chunk.token_ids]
    assert request == 0 and text == plain(toy(), [3, 4], SamplingParams(max_tokens=5))
    assert divided.caches_agree()


def test_there_is_no_room_until_a_step_has_ended(monkeypatch):
    waited = []
    make_room = Scheduler.make_room

    def noted(self):
        preempted = make_room(self)
        waited.append(preempted is None)
        return preempted

    monkeypatch.setattr(Scheduler, "make_room", noted)
    divided = Divided(2, block_size=4, num_blocks=24, max_batch=2)
    params = SamplingParams(max_tokens=60)
    prompts = [[5] * 20, [6] * 24]
    assert [output.token_ids for output in divided.engine.generate(prompts, params)] == [plain(toy(), one, params) for one in prompts]
    assert any(waited) and not all(waited)
    assert divided.caches_agree()
