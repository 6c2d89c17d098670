import torch

from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.config import SamplingParams
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Phase, Request, StopRules
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.scheduler import Scheduler
from flexspec.runtime.verifiers.registry import make_verifier

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=1, padded_head_dim=1, dtype=torch.float32)
PARAMS = SamplingParams()


def scheduler_of(*, max_batch=2, pass_tokens=16, blocks=2):
    cache = KVCache(KVStorage(SHAPE, num_blocks=blocks, block_size=100))
    return Scheduler(cache, max_batch=max_batch, pass_tokens=pass_tokens, request_slots=100)


def request_of(request_id, prompt_length):
    return Request(
        request_id,
        [0] * prompt_length,
        PARAMS,
        sampler=RequestSampler(PARAMS, seed=0, vocab_limit=4),
        verifier=make_verifier("auto", PARAMS),
        rules=StopRules(eos_token_ids=frozenset(), max_len=90),
        text=None,
        keep_chunks=False,
    )


def counts(scheduler, tree_tokens=0):
    return [(chunk.request.request_id, chunk.count, chunk.is_last) for chunk in scheduler.prefill_chunks(tree_tokens)]


def finish_prefill(request):
    request.num_computed = request.prompt_length
    request.emit([1])


def test_first_come_first_served():
    scheduler = scheduler_of()
    requests = [request_of(request_id, 3) for request_id in range(4)]
    for request in requests:
        scheduler.add(request)
    scheduler.admit()
    assert scheduler.running == requests[:2] and requests[2].phase is Phase.WAITING
    scheduler.remove(requests[0])
    scheduler.remove(requests[2])
    scheduler.admit()
    assert scheduler.running == [requests[1], requests[3]]
    scheduler.remove(requests[1])
    scheduler.remove(requests[3])
    assert not scheduler.has_work


def test_requests_wait_for_slots():
    scheduler = scheduler_of(max_batch=8, blocks=1)
    for request_id in range(2):
        scheduler.add(request_of(request_id, 3))
    scheduler.admit()
    assert len(scheduler.running) == 1


def test_prompts_share_a_pass_in_chunks():
    scheduler = scheduler_of(pass_tokens=10)
    first, second = request_of(0, 12), request_of(1, 20)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.admit()
    assert counts(scheduler) == [(0, 10, False)]
    first.num_computed = 10
    assert counts(scheduler) == [(0, 2, True), (1, 8, False)]


def test_trees_go_first_but_leave_prompts_a_quarter():
    scheduler = scheduler_of(max_batch=3, blocks=3)
    decoding, prompt = request_of(0, 2), request_of(1, 50)
    scheduler.add(decoding)
    scheduler.admit()
    finish_prefill(decoding)
    assert scheduler.decoding() == [decoding] and scheduler.tree_tokens() == 16 and counts(scheduler, 16) == []
    scheduler.add(prompt)
    scheduler.admit()
    assert scheduler.tree_tokens() == 12
    assert counts(scheduler, 12) == [(1, 4, False)] and counts(scheduler, 1) == [(1, 15, False)]
    prompt.num_computed = 49
    assert scheduler.tree_tokens() == 15, "no more is kept free than is left of the prompts"


def test_every_decoding_request_has_a_token_in_every_pass():
    scheduler = scheduler_of(max_batch=4, pass_tokens=4, blocks=4)
    requests = [request_of(request_id, 3) for request_id in range(4)]
    for request in requests:
        scheduler.add(request)
    scheduler.admit()
    for request in requests[:3]:
        finish_prefill(request)
    assert scheduler.tree_tokens() == 3 and counts(scheduler, 3) == [(3, 1, False)]
    finish_prefill(requests[3])
    assert scheduler.tree_tokens() == 4 and counts(scheduler, 4) == []


def test_waiting_prompts_never_push_a_decoding_request_out():
    scheduler = scheduler_of(max_batch=16, pass_tokens=16, blocks=16)
    requests = [request_of(request_id, 40) for request_id in range(15)]
    for request in requests:
        scheduler.add(request)
    scheduler.admit()
    for request in requests[:14]:
        finish_prefill(request)
    assert scheduler.tree_tokens() == 14 and counts(scheduler, 14) == [(14, 2, False)]
