"""How passes are rounded up, and attention over long texts is divided."""

from dataclasses import replace

import numpy as np
import pytest

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.cuda.pass_shape import LEAST_KEYS_A_SPLIT, PassSizes
from flexspec.codegen.cuda.report.roofline import CHIPS, Chip, LayerShape, split_seconds
from flexspec.codegen.cuda.tiles import block_tokens

SIZES = PassSizes(tokens=(1, 4, 16, 64, 512), heads=9, kv_heads=3, multiprocessors=132)


@pytest.mark.parametrize(
    ("num_tiles", "num_tokens", "longest", "splits"),
    [
        (1, 1, 255, 1),
        (1, 1, 512, 4),
        (1, 1, 100_000, 32),  # the most that the second half of attention adds up, though 44 would keep the GPU busy
        (8, 8, 100_000, 16),
        (2, 85, 4096, 16),  # rows of partial results cost more than idle multiprocessors
        (100, 100, 100_000, 8),
        (1000, 1000, 1024, 1),
    ],
)
def test_splits_keep_a_gpu_busy_but_are_not_small_or_too_many(num_tiles: int, num_tokens: int, longest: int, splits: int) -> None:
    assert SIZES.splits(num_tiles, num_tokens, longest) == splits
    assert replace(SIZES, multiprocessors=0).splits(num_tiles, num_tokens, longest) == 1


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64)])
def test_splits_are_those_that_the_account_calls_best(chip: Chip, heads: int, kv_heads: int, head_dim: int) -> None:
    layer = LayerShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=1, vocab=1)
    sizes = PassSizes(tokens=(128,), heads=heads, kv_heads=kv_heads, multiprocessors=chip.multiprocessors)
    excess = []
    for tokens in range(1, 129):
        num_tiles = -(-tokens // block_tokens(heads, kv_heads, tokens))
        before = 1
        for context in (512, 1024, 2048, 4096, 8192, 16_384, 32_768):
            seconds = {
                splits: split_seconds(layer, chip, tokens=tokens, context=context, cache_bytes=2, num_splits=splits)
                for splits in (1, 2, 4, 8, 16, 32)
                if splits == 1 or context + tokens >= splits * LEAST_KEYS_A_SPLIT
            }
            chosen = sizes.splits(num_tiles, tokens, context + tokens)
            assert chosen >= before, "longer texts have no fewer parts"
            before = chosen
            excess.append(seconds[chosen] / min(seconds.values()) - 1)
    assert np.mean(excess) < 0.03, "a few percent on the average"
    assert np.quantile(excess, 0.85) < 0.01, "none in most cases"
    assert max(excess) < 0.5, "and not much in any"


def test_parts_are_counted_for_the_tokens_there_are_and_not_for_padding() -> None:
    sizes = replace(SIZES, tokens=(512,), heads=32, kv_heads=8)
    tree = chain_batch(np.zeros(65, dtype=np.int64), start=8192)
    assert sizes.shape(tree).num_splits == sizes.splits(3, 65, 8257) == 16


def test_sizes_are_rounded_up() -> None:
    shape = SIZES.shape(chain_batch(np.zeros(5, dtype=np.int64), start=600, output_rows=np.array([4, 3, 2], dtype=np.int32)))
    assert (shape.num_tokens, shape.num_outputs, shape.num_requests, shape.tail_words) == (16, 4, 1, 0)
    assert shape.num_splits == 4 and shape.num_tiles >= 1
