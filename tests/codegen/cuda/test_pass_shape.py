"""How passes are rounded up, and attention over long texts is divided."""

from dataclasses import replace

import numpy as np
import pytest

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.cuda.pass_shape import PassSizes

SIZES = PassSizes(tokens=(1, 4, 16, 64, 512), heads=9, kv_heads=3, multiprocessors=132)


@pytest.mark.parametrize(
    ("num_tiles", "longest", "splits"),
    [
        (1, 255, 1),
        (1, 512, 2),
        (1, 1100, 4),
        (1, 100_000, 32),  # the most that the second half of attention adds up, though 88 would keep the GPU busy
        (8, 100_000, 8),
        (100, 100_000, 1),
    ],
)
def test_splits_keep_a_gpu_busy_but_are_not_small_or_too_many(num_tiles: int, longest: int, splits: int) -> None:
    assert SIZES.splits(num_tiles, longest) == splits
    assert replace(SIZES, multiprocessors=0).splits(num_tiles, longest) == 1


def test_sizes_are_rounded_up() -> None:
    shape = SIZES.shape(chain_batch(np.zeros(5, dtype=np.int64), start=600, output_rows=np.array([4, 3, 2], dtype=np.int32)))
    assert (shape.num_tokens, shape.num_outputs, shape.num_requests, shape.tail_words) == (16, 4, 1, 0)
    assert shape.num_splits == 2 and shape.num_tiles >= 1
