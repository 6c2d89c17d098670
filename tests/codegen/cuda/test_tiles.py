import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexspec.codegen.cuda.tiles import ROW_BLOCKS, block_tokens, query_tiles, row_block, tile_count


def test_tiles_by_hand() -> None:
    tiles = query_tiles([3, 1, 0, 4], 2, num_tiles=6)
    assert tiles.dtype == np.int32
    assert tiles.tolist() == [[0, 2, 0, 0], [2, 1, 0, 0], [3, 1, 1, 0], [4, 2, 3, 0], [6, 2, 3, 0], [0, 0, 0, 0]]
    assert query_tiles([], 4).shape == (0, 4)
    with pytest.raises(AssertionError, match="5 tiles in a bucket of 4"):
        query_tiles([3, 1, 0, 4], 2, num_tiles=4)


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 20))
def test_tiles_hold_each_token_once(sizes: list[int], block: int) -> None:
    tiles = query_tiles(sizes, block)
    tokens = [(token, row) for first, count, row, _ in tiles.tolist() for token in range(first, first + count)]
    assert tokens == list(enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist()))
    assert ((tiles[:, 1] > 0) & (tiles[:, 1] <= block)).all()
    assert len(tiles) <= tile_count(sum(sizes), len(sizes), block)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "longest", "expected"),
    [
        (32, 8, 1, 4),
        (32, 8, 4, 4),
        (32, 8, 5, 16),
        (32, 8, 17, 32),
        (32, 8, 900, 32),
        (28, 4, 30, 18),
        (71, 1, 1, 1),
        (9, 3, 2, 5),
        (200, 1, 9, 1),
    ],
)
def test_block_tokens(heads: int, kv_heads: int, longest: int, expected: int) -> None:
    assert block_tokens(heads, kv_heads, longest) == expected


def test_row_blocks() -> None:
    assert [row_block(rows) for rows in (1, 16, 17, 64, 65, 128, 129)] == [16, 16, 64, 64, 128, 128, 128]
    assert ROW_BLOCKS == (16, 64, 128)
