"""What the other ranks hear of a cache, and when."""

import gc

import numpy as np
import torch

from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.runtime.distributed.mirrored_caches import MirroredCaches

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2, padded_head_dim=2, dtype=torch.float32)


def storage() -> KVStorage:
    return KVStorage(SHAPE, num_blocks=3, block_size=4)


def slots(*numbers):
    return np.array(numbers, dtype=np.int32)


def moves(update):
    return [(sources.tolist(), destinations.tolist()) for sources, destinations in update.moves]


def test_moves_are_told_once_in_order_and_only_with_the_cache_that_they_are_of():
    caches, one, other = MirroredCaches(), storage(), storage()
    first = caches.update(one)
    assert (first.num_blocks, first.block_size, moves(first), first.dropped) == (3, 4, [], ())
    second = caches.update(other)
    assert second.cache != first.cache
    one.move(slots(5), slots(2))
    one.move(slots(), slots())
    one.move(slots(7, 3), slots(3, 4))
    assert moves(caches.update(other)) == []
    again = caches.update(one)
    assert again.cache == first.cache and moves(again) == [([5], [2]), ([7, 3], [3, 4])]
    assert moves(caches.update(one)) == []


def test_moves_before_the_first_pass_are_of_nothing():
    caches, one = MirroredCaches(), storage()
    one.move(slots(5), slots(2))
    assert moves(caches.update(one)) == []


def test_a_cache_that_is_gone_is_dropped_once_and_its_number_not_used_again():
    caches, one, other = MirroredCaches(), storage(), storage()
    gone = caches.update(one).cache
    kept = caches.update(other).cache
    del one
    gc.collect()
    assert caches.update(other).dropped == (gone,)
    assert caches.update(other).dropped == ()
    assert caches.update(storage()).cache not in (gone, kept)
