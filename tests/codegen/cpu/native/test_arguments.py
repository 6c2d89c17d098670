"""A batch reaches the library as it is, whatever was there before."""

import ctypes
import gc

import numpy as np
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.cpu.native.arguments import BatchArguments, CacheArguments
from flexspec.codegen.cpu.native.structures import BATCH_ARRAYS
from flexspec.codegen.kv_storage import KVShape, KVStorage


def batch(tokens: int, *, words: int, requests: int, blocks: int) -> Batch:
    rng = np.random.default_rng(tokens)
    shapes = {name: (tokens,) for name in BATCH_ARRAYS}
    shapes |= {"tail_starts": (requests,), "tail_bits": (tokens, words), "block_tables": (requests, blocks), "output_rows": (tokens // 2,)}
    wide = ("token_ids", "positions")
    return Batch(**{name: rng.integers(99, size=shape, dtype=np.int64 if name in wide else np.int32) for name, shape in shapes.items()})


def test_arrays_of_all_sizes_arrive() -> None:
    arguments = BatchArguments()
    for given in (
        batch(3, words=1, requests=1, blocks=1),
        batch(200, words=3, requests=9, blocks=20),
        batch(1, words=0, requests=1, blocks=1),
    ):
        arguments.fill(given)
        structure = arguments._structure
        for name in BATCH_ARRAYS:
            array = getattr(given, name)
            kind = ctypes.c_int64 if array.dtype == np.int64 else ctypes.c_int32
            found = (kind * array.size).from_address(getattr(structure, name))
            assert list(found) == array.ravel().tolist()
        assert (structure.num_tokens, structure.num_outputs) == (given.num_tokens, len(given.output_rows))
        assert (structure.tail_words, structure.blocks_per_request) == (given.tail_bits.shape[1], given.block_tables.shape[1])


def test_a_storage_is_not_kept_alive() -> None:
    shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=16, padded_head_dim=16, dtype=torch.float32)
    storage, other = (KVStorage(shape, num_blocks=1, block_size=4) for _ in range(2))
    arguments = CacheArguments(storage)
    assert arguments.is_for(storage) and not arguments.is_for(other)
    del storage
    gc.collect()
    assert arguments._storage() is None
