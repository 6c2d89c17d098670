import torch

from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.config import SamplingParams
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Phase, Request, StopRules
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.scheduler import PrefillChunk, Scheduler
from flexspec.runtime.verifiers.registry import make_verifier

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=1, padded_head_dim=1, dtype=torch.float32)
PARAMS = SamplingParams()


def scheduler_of(*, max_batch=2, pass_tokens=16, blocks=2):
    cache = KVCache(KVStorage(SHAPE, num_blocks=blocks, block_size=100))
    return Scheduler(cache, max_batch=max_batch, pass_tokens=pass_tokens, tail_slots=5, max_tail_slots=9)


def request_of(request_id, prompt_length, params=PARAMS):
    return Request(
        request_id,
        [0] * prompt_length,
        params,
        sampler=RequestSampler(params, seed=0, vocab_limit=4),
        verifier=make_verifier("auto", params),
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


def paged(*, blocks, block_size=4, tail_slots=1, max_tail_slots=9, **options):
    cache = KVCache(KVStorage(SHAPE, num_blocks=blocks, block_size=block_size), blocks_per_request=25)
    sizes = {"max_batch": 8, "pass_tokens": 64}
    return cache, Scheduler(cache, tail_slots=tail_slots, max_tail_slots=max_tail_slots, **(sizes | options))


def decoding(scheduler, cache, *lengths):
    """Requests that have joined and whose prompts, of these lengths, are computed."""
    requests = [request_of(request_id, length) for request_id, length in enumerate(lengths)]
    for request in requests:
        scheduler.add(request)
    scheduler.admit()
    assert list(scheduler.running) == requests
    for request in requests:
        cache.reserve(request.request_id, request.prompt_length)
        cache.commit(request.request_id, range(request.prompt_length))
        finish_prefill(request)
    return requests


def fill(cache, request, tokens):
    """Text that a request emits, and that its cache holds."""
    cache.reserve(request.request_id, tokens)
    cache.commit(request.request_id, range(tokens))
    request.tokens += [1] * tokens


def test_a_request_joins_if_its_prompt_and_a_tail_for_everyone_fit():
    cache, scheduler = paged(blocks=5, tail_slots=3)
    (first,) = decoding(scheduler, cache, 5)  # its next tail, in slots 5 … 7, has its block
    second = request_of(1, 10)
    scheduler.add(second)
    fill(cache, first, 1)
    scheduler.admit()
    assert scheduler.running == [first], "3 blocks are free, and 10 + 3 slots take 4"
    scheduler.remove(second)
    scheduler.add(request_of(2, 9))
    scheduler.admit()
    assert scheduler.running == [first], "9 + 3 slots take 3 blocks, and the tail of the first, in slots 6 … 8, takes one"
    scheduler.add(request_of(3, 5))
    scheduler.admit()
    assert scheduler.running == [first], "nobody overtakes"


def test_the_last_to_join_is_preempted_and_waits_at_the_front():
    cache, scheduler = paged(blocks=6)
    requests = decoding(scheduler, cache, 3, 3, 3)
    waiting = request_of(9, 20)
    scheduler.add(waiting)
    assert scheduler.make_room() == [] and scheduler.num_preemptions == 0
    for request in requests:
        fill(cache, request, 1)
    assert scheduler.make_room() == [] and cache.num_free_blocks == 3, "one block for each root"
    fill(cache, requests[0], 4)
    fill(cache, requests[1], 4)
    assert scheduler.make_room() == [requests[2]] and scheduler.running == requests[:2]
    assert requests[2].phase is Phase.WAITING and requests[2].num_uncomputed == 4 == len(requests[2].tokens) - 1
    assert cache.request_ids == {0, 1} and cache.num_free_blocks == 2 and scheduler.num_preemptions == 1
    fill(cache, requests[0], 4)
    assert scheduler.make_room() == [requests[1]] and scheduler.running == requests[:1]
    scheduler.remove(requests[0])
    scheduler.admit()
    assert scheduler.running == requests[1:], "the first to have joined joins first; the one that came last still waits"
    assert counts(scheduler) == [(1, 8, False), (2, 4, False)]
    requests[1].computed(8)
    requests[2].computed(3)
    assert scheduler.decoding() == [requests[1]] and counts(scheduler, 1) == [(2, 1, False)]


def test_nothing_is_put_out_twice_for_the_log_probabilities_of_a_prompt():
    request = request_of(0, 10, SamplingParams(prompt_logprobs=0))
    request.start_prefill()

    def outputs(count):
        return PrefillChunk(request=request, count=count).num_outputs

    assert outputs(4) == 4
    request.add_prompt_logprobs([None] * 4)
    request.computed(4)
    assert outputs(3) == 3 and outputs(6) == 6
    request.preempt()
    assert (outputs(4), outputs(5), outputs(10)) == (0, 1, 6)
    request.computed(6)
    assert (outputs(1), outputs(4)) == (1, 4)
    request.add_prompt_logprobs([None] * 5)
    request.computed(4)
    request.emit([1])
    request.emit([1])
    request.preempt()
    assert request.num_uncomputed == 11 and outputs(11) == 0 and not PrefillChunk(request=request, count=11).is_last


def test_the_time_in_the_queue_ends_with_the_first_turn():
    request = request_of(0, 3)
    request.start_prefill()
    queued_s = request.stats.queued_s
    request.preempt()
    request.start_prefill()
    assert request.stats.queued_s == queued_s > 0


def test_scarce_blocks_are_dealt_out_to_the_trees():
    cache, scheduler = paged(blocks=11)
    requests = decoding(scheduler, cache, 3, 4, 6)  # with a slot for the next root they hold 1, 2 and 2 blocks
    assert cache.num_free_blocks == 6 and scheduler.tree_rooms() is None, "tails of 9 slots take 2 blocks more each"
    cache.allocate(9, 8)
    assert scheduler.tree_rooms() == [1 + 8, 4 + 4, 2 + 4], "two blocks for the first, then none are left for a second round"
    cache.allocate(10, 16)
    assert scheduler.tree_rooms() == [1, 4, 2]
    fill(cache, requests[1], 2)
    assert scheduler.tree_rooms() == [1, 2, 2] and scheduler.make_room() == []
