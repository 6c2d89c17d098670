"""Query tiles: how the flat tokens of a pass are cut into the pieces that attention programs work on."""

import numpy as np
import numpy.typing as npt

from flexspec.codegen.batch import Int32

# How many rows (tokens times query heads of a KV head) the programs of tree attention come in.
ROW_BLOCKS = (16, 64, 128)


def block_tokens(heads: int, kv_heads: int, longest: int) -> int:
    """How many tokens a tile holds at most: as many as fit the smallest row block that takes all of a request's, or the largest one.

    There are few values, so that captured graphs are few.

    Args:
        heads: query heads.
        kv_heads: KV heads, a divisor of `heads`.
        longest: the most tokens that any request has in the pass: 1 when all of them decode plainly.
    """
    assert heads % kv_heads == 0 and longest > 0, f"{heads} heads, {kv_heads} KV heads, {longest} tokens"
    group = heads // kv_heads
    return max(1, row_block(longest * group) // group)


def row_block(rows: int) -> int:
    """The smallest row block of at least `rows` rows, or the largest one."""
    return next((block for block in ROW_BLOCKS if block >= rows), ROW_BLOCKS[-1])


def tile_count(num_tokens: int, num_requests: int, block_tokens: int) -> int:
    """The most tiles that `num_tokens` tokens of `num_requests` requests can make: what a bucket must have room for."""
    return min(num_tokens, num_tokens // block_tokens + num_requests)


def query_tiles(request_sizes: npt.ArrayLike, block_tokens: int, *, num_tiles: int | None = None) -> Int32:
    """Cut each request's tokens into tiles of `block_tokens` tokens; the last one of a request may have fewer.

    Args:
        request_sizes: [R], tokens of each request, in the order of the batch; row r of the block tables is request r.
        block_tokens: the most tokens of a tile.
        num_tiles: rows of the result, those left over being empty tiles; as many as are needed by default.

    Returns:
        [T, 4]: first token, number of tokens, request row, 0.
    """
    sizes = np.asarray(request_sizes, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    pieces = -(-sizes // block_tokens)
    needed = int(pieces.sum())
    assert num_tiles is None or needed <= num_tiles, f"{needed} tiles in a bucket of {num_tiles}"
    rows = np.repeat(np.arange(len(sizes)), pieces)
    offsets = (np.arange(needed) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * block_tokens
    tiles = np.zeros((needed if num_tiles is None else num_tiles, 4), dtype=np.int32)
    tiles[:needed, 0] = starts[rows] + offsets
    tiles[:needed, 1] = np.minimum(sizes[rows] - offsets, block_tokens)
    tiles[:needed, 2] = rows
    return tiles
