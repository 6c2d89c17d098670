import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.runtime.kv_cache import KVCache

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=1, padded_head_dim=1, dtype=torch.float32)


def make_cache(*, num_blocks=4, block_size=8, blocks_per_request=1):
    return KVCache(KVStorage(SHAPE, num_blocks=num_blocks, block_size=block_size), blocks_per_request=blocks_per_request)


def write(cache, request_id, first, values):
    """Write `values` where a forward pass would: through the block table."""
    table, size = cache.block_table(request_id), cache.storage.block_size
    for slot, value in enumerate(values, start=first):
        physical = table[slot // size] * size + slot % size
        cache.storage.keys[:, physical] = value
        cache.storage.values[:, physical] = -value


def committed(cache, request_id):
    slots = cache.physical_slots(request_id)
    keys = cache.storage.keys[:, slots, 0, 0]
    assert torch.equal(cache.storage.values[:, slots, 0, 0], -keys) and torch.equal(keys[0], keys[1])
    return keys[0].tolist()


def test_accepted_nodes_with_a_rejected_one_between_are_compacted():  # case 6
    cache = make_cache()
    cache.allocate(7, 8)
    write(cache, 7, cache.reserve(7, 2), [10, 11])
    cache.commit(7, range(2))
    write(cache, 7, cache.reserve(7, 4), [20, 21, 22, 23])
    cache.commit(7, [0, 2, 3])
    cache.apply_moves()
    assert committed(cache, 7) == [10, 11, 20, 22, 23]


def test_moves_of_several_requests_are_made_in_one_copy(monkeypatch):
    cache = make_cache()
    calls = []
    move = cache.storage.move
    monkeypatch.setattr(cache.storage, "move", lambda *slots: (calls.append(slots), move(*slots)))
    for request_id in (0, 1, 2):
        cache.allocate(request_id, 8)
        write(cache, request_id, cache.reserve(request_id, 4), [4 * request_id + node for node in range(4)])
    cache.commit(0, [0, 3])
    cache.commit(1, [0, 1, 2])
    cache.commit(2, [0, 2])
    cache.apply_moves()
    cache.apply_moves()
    assert len(calls) == 1 and len(calls[0][0]) == 2
    assert [committed(cache, request_id) for request_id in (0, 1, 2)] == [[0, 3], [4, 5, 6], [8, 10]]


def test_rollback_drops_the_tail_and_more():
    cache = make_cache()
    cache.allocate(0, 8)
    write(cache, 0, cache.reserve(0, 3), [1, 2, 3])
    cache.commit(0, range(3))
    cache.reserve(0, 5)
    cache.rollback(0)
    assert cache.length(0) == 3
    cache.rollback(0, 1)
    assert committed(cache, 0) == [1]
    assert cache.reserve(0, 7) == 1


def test_freed_blocks_are_given_again_and_pending_moves_die_with_their_request():
    cache = make_cache(num_blocks=1)
    cache.allocate(0, 8)
    write(cache, 0, cache.reserve(0, 3), [1, 2, 3])
    cache.commit(0, [0, 2])
    cache.free(0)
    cache.free(0)
    cache.allocate(1, 8)
    write(cache, 1, cache.reserve(1, 3), [4, 5, 6])
    cache.commit(1, range(3))
    cache.apply_moves()
    assert committed(cache, 1) == [4, 5, 6]
    assert not cache.can_allocate(1)


def test_a_tail_beyond_the_capacity_is_our_own_bug():
    cache = make_cache()
    cache.allocate(0, 8)
    with pytest.raises(AssertionError, match="2 blocks exceed 1"):
        cache.reserve(0, 9)


def test_blocks_come_with_the_tail_and_go_back_empty():
    cache = make_cache(num_blocks=6, block_size=4, blocks_per_request=5)
    cache.allocate(0, 5)
    assert (cache.num_free_blocks, cache.capacity(0), cache.missing_blocks(0, 8), cache.missing_blocks(0, 9)) == (4, 8, 0, 1)
    write(cache, 0, cache.reserve(0, 17), range(17))
    assert cache.num_free_blocks == 1 and len(set(cache.block_table(0).tolist())) == 5
    cache.commit(0, range(9))
    assert cache.num_free_blocks == 3 and cache.block_table(0).tolist()[3:] == [0, 0]
    cache.rollback(0, 3)
    assert cache.num_free_blocks == 4, "those of its allocation stay"
    assert committed(cache, 0) == [0, 1, 2]
    cache.reserve(0, 17)
    with pytest.raises(AssertionError, match="6 blocks exceed 5"):
        cache.reserve(0, 18)
    cache.allocate(1, 4)
    with pytest.raises(AssertionError, match="1 blocks wanted, 0 free"):
        cache.reserve(1, 5)
    cache.free(0)
    assert cache.num_free_blocks == 5


def test_a_block_that_a_move_reads_is_given_back_only_after_it():
    cache = make_cache(num_blocks=3, block_size=2, blocks_per_request=3)
    cache.allocate(0, 2)
    write(cache, 0, cache.reserve(0, 6), range(6))
    cache.commit(0, [0, 5])
    assert cache.num_free_blocks == 0
    cache.apply_moves()
    assert cache.num_free_blocks == 2 and committed(cache, 0) == [0, 5]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_history_keeps_the_committed_values_and_every_block_in_one_place(data):
    """Requests come, reserve, commit, roll back and go, in any order, against lists of what they should hold."""
    block_size = data.draw(st.sampled_from([1, 3, 4, 16]))
    per_request, num_blocks = -(-16 // block_size), -(-48 // block_size)
    cache = make_cache(num_blocks=num_blocks, block_size=block_size, blocks_per_request=per_request)
    texts: dict[int, list[int]] = {}
    kept: dict[int, int] = {}
    value = 0
    for step in range(data.draw(st.integers(1, 25))):
        capacity = data.draw(st.integers(1, 16))
        if len(texts) < 5 and cache.can_allocate(capacity) and data.draw(st.booleans()):
            cache.allocate(step, capacity)
            texts[step], kept[step] = [], cache.blocks_for(capacity)
        for running, text in list(texts.items()):
            action = data.draw(st.sampled_from(["grow", "grow", "grow", "roll back", "free"]))
            if action == "free":
                cache.free(running)
                del texts[running]
                continue
            if action == "roll back":
                del text[data.draw(st.integers(0, len(text))) :]
                cache.rollback(running, len(text))
                continue
            count = data.draw(st.integers(0, 16 - len(text)))
            missing, free = cache.missing_blocks(running, count), cache.num_free_blocks
            if missing > free:
                continue
            first = cache.reserve(running, count)
            assert first == len(text) and cache.num_free_blocks == free - missing and cache.missing_blocks(running, count) == 0
            values = list(range(value, value := value + count))
            write(cache, running, first, values)
            path = sorted(data.draw(st.sets(st.integers(0, count - 1)))) if count else []
            cache.commit(running, path)
            text += [values[node] for node in path]
        cache.apply_moves()
        owned = list(cache._free_blocks)
        for running, text in texts.items():
            assert committed(cache, running) == text and cache.length(running) == len(text)
            count = max(kept[running], cache.blocks_for(len(text)))
            assert cache.capacity(running) == count * block_size
            owned += cache.block_table(running)[:count].tolist()
            assert not cache.block_table(running)[count:].any()
        assert sorted(owned) == list(range(num_blocks)), "a block is lost, or in two places"
