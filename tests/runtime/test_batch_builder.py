import pytest
import torch

from flexspec.codegen.device_trees import GrownRows
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.config import SamplingParams
from flexspec.runtime.batch_builder import BatchBuilder
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Request, StopRules
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.scheduler import PrefillChunk
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.registry import make_verifier

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=1, padded_head_dim=1, dtype=torch.float32)
PARAMS = SamplingParams()


@pytest.fixture
def cache():
    return KVCache(KVStorage(SHAPE, num_blocks=4, block_size=64))


def request_of(cache, request_id, *, prompt, committed, params=PARAMS):
    cache.allocate(request_id, 64)
    cache.reserve(request_id, committed)
    cache.commit(request_id, range(committed))
    request = Request(
        request_id,
        prompt,
        params,
        sampler=RequestSampler(params, seed=0, vocab_limit=100),
        verifier=make_verifier("auto", params),
        rules=StopRules(eos_token_ids=frozenset(), max_len=64),
        text=None,
        keep_chunks=False,
    )
    request.num_computed = committed
    return request


def test_a_pass_of_trees_and_chunks(cache):
    branching = request_of(cache, 0, prompt=[1, 2, 3], committed=2)
    chain = request_of(cache, 1, prompt=[4], committed=0)
    ends = request_of(cache, 2, prompt=[5, 6, 7, 8], committed=1)
    goes_on = request_of(cache, 3, prompt=[9] * 9, committed=4)
    trees = [
        (branching, TokenTree(tokens=[3, 10, 11, 12], parents=[-1, 0, 0, 2])),
        (chain, TokenTree(tokens=[4, 13], parents=[-1, 0])),
    ]
    chunks = [PrefillChunk(request=ends, count=3), PrefillChunk(request=goes_on, count=2)]
    batch = BatchBuilder(cache, pass_tokens=16).build(trees, chunks)
    assert batch.token_ids.tolist() == [3, 10, 11, 12, 4, 13, 6, 7, 8, 9, 9]
    assert batch.request_rows.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert batch.positions.tolist() == [2, 3, 3, 4, 0, 1, 1, 2, 3, 4, 5]
    assert batch.slots.tolist() == [2, 3, 4, 5, 0, 1, 1, 2, 3, 4, 5]
    assert batch.context_lens.tolist() == [2, 2, 2, 2, 1, 2, 2, 3, 4, 5, 6]
    assert batch.tail_bits.tolist() == [[0b1], [0b11], [0b101], [0b1101]] + [[0]] * 7
    assert batch.tail_starts.tolist() == [2, 0, 1, 4]
    assert batch.output_rows.tolist() == [0, 1, 2, 3, 4, 5, 8]
    assert batch.block_tables.tolist() == [[int(cache.block_table(request_id)[0])] for request_id in range(4)]


def test_chains_alone_carry_no_bit_rows(cache):
    request = request_of(cache, 0, prompt=[1, 2], committed=1)
    for tree in (TokenTree.root(2), TokenTree(tokens=[2, 3, 4], parents=[-1, 0, 1])):
        batch = BatchBuilder(cache, pass_tokens=16).build([(request, tree)], [])
        assert batch.tail_bits.shape == (len(tree.tokens), 0)
        assert batch.context_lens.tolist() == [slot + 1 for slot in batch.slots]


def test_rows_are_as_wide_as_the_widest_tree(cache):
    narrow, wide = request_of(cache, 0, prompt=[1], committed=0), request_of(cache, 1, prompt=[2], committed=0)
    star = TokenTree(tokens=[2] * 40, parents=[-1] + [0] * 39)
    trees = [(narrow, TokenTree(tokens=[1, 2, 3], parents=[-1, 0, 0])), (wide, star)]
    batch = BatchBuilder(cache, pass_tokens=64).build(trees, [])
    assert batch.tail_bits.shape == (43, 2) and batch.tail_bits.dtype == "int32"
    assert batch.tail_bits[1].tolist() == [3, 0] and batch.tail_bits[3 + 35].tolist() == [1, 8]
    assert batch.tail_bits[3 + 31].tolist() == [1 - 2**31, 0]


def test_prefill_alone_may_want_no_logits(cache):
    request = request_of(cache, 0, prompt=[1] * 9, committed=0)
    batch = BatchBuilder(cache, pass_tokens=16).build([], [PrefillChunk(request=request, count=4)])
    assert batch.output_rows.tolist() == [] and batch.num_tokens == 4


def test_chunks_put_out_all_their_rows_where_log_probabilities_of_the_prompt_are_wanted(cache):
    asks = SamplingParams(prompt_logprobs=0)
    tree = (request_of(cache, 0, prompt=[1, 2], committed=1), TokenTree.root(2))
    goes_on = request_of(cache, 1, prompt=[3] * 9, committed=2, params=asks)
    asks_not = request_of(cache, 2, prompt=[4] * 3, committed=1)
    ends = request_of(cache, 3, prompt=[5] * 4, committed=1, params=asks)
    chunks = [PrefillChunk(request=goes_on, count=4), PrefillChunk(request=asks_not, count=2), PrefillChunk(request=ends, count=3)]
    batch = BatchBuilder(cache, pass_tokens=16).build([tree], chunks)
    assert batch.output_rows.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [chunk.num_outputs for chunk in chunks] == [4, 1, 3]


def test_arrays_have_the_types_of_the_interface(cache):
    request = request_of(cache, 0, prompt=[1, 2], committed=1)
    batch = BatchBuilder(cache, pass_tokens=16).build([(request, TokenTree.root(2))], [])
    assert {batch.token_ids.dtype.name, batch.positions.dtype.name} == {"int64"}
    fields = ("request_rows", "slots", "context_lens", "tail_starts", "tail_bits", "block_tables", "output_rows")
    assert {getattr(batch, field).dtype.name for field in fields} == {"int32"}
    assert all(getattr(batch, field).flags.c_contiguous for field in (*fields, "token_ids", "positions"))


def test_trees_that_the_device_completes_are_roots_and_slots(cache):
    grows = request_of(cache, 0, prompt=[1, 2, 3], committed=2)
    root_alone = request_of(cache, 1, prompt=[4], committed=0)
    ends = request_of(cache, 2, prompt=[5, 6, 7, 8], committed=1)
    trees = [(grows, TokenTree(tokens=[3] * 35, parents=[-1, *[0] * 34])), (root_alone, TokenTree.root(4))]
    rows = GrownRows(rows=torch.zeros((34, 6), dtype=torch.int32), targets=torch.arange(1, 35))
    batch = BatchBuilder(cache, pass_tokens=64).build(trees, [PrefillChunk(request=ends, count=3)], rows)
    assert batch.grown is rows
    assert batch.positions.tolist() == [2] * 35 + [0, 1, 2, 3]
    assert batch.slots.tolist() == [*range(2, 37), 0, 1, 2, 3]
    assert batch.context_lens.tolist() == [2] * 35 + [0, 2, 3, 4]
    assert batch.tail_bits.tolist() == [[1, 0], *[[0, 0]] * 34, [1, 0], *[[0, 0]] * 3]
    assert (batch.token_ids[0], batch.token_ids[35]) == (3, 4)
    assert batch.output_rows.tolist() == [*range(36), 38]
