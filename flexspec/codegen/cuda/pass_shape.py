"""The sizes of a pass on a GPU: few enough that each can be captured once."""

from dataclasses import dataclass

import numpy as np

from flexspec.codegen.batch import Batch, Int64
from flexspec.codegen.cuda.kernels.combine_splits import MOST_SPLITS
from flexspec.codegen.cuda.tiles import block_tokens, tile_count

LEAST_TOKENS_A_SPLIT = 256
_PROGRAMS_A_MULTIPROCESSOR = 2


@dataclass(frozen=True, kw_only=True)
class PassShape:
    """Everything about a pass that a captured graph fixes.

    Attributes:
        num_tokens: rows of the pass, padding included.
        num_outputs: rows of logits, padding included.
        num_requests: rows of the block tables, padding included.
        tail_words: int32 words of a bit row; 0 if every request is a chain.
        table_columns: blocks of a request at most.
        block_tokens: most tokens of a query tile.
        num_tiles: query tiles, padding included.
        num_splits: parts that attention divides the keys into.
    """

    num_tokens: int
    num_outputs: int
    num_requests: int
    tail_words: int
    table_columns: int
    block_tokens: int
    num_tiles: int
    num_splits: int


@dataclass(frozen=True, kw_only=True)
class PassSizes:
    """How passes are rounded up.

    Attributes:
        tokens: the allowed numbers of tokens, ascending.
        heads: query heads.
        kv_heads: KV heads: programs of attention for each tile.
        multiprocessors: what attention should keep busy; 0 for no splits.
    """

    tokens: tuple[int, ...]
    heads: int
    kv_heads: int
    multiprocessors: int

    def shape(self, batch: Batch) -> PassShape:
        """The least shape that holds a batch."""
        num_tokens = next((size for size in self.tokens if size >= batch.num_tokens), None)
        assert num_tokens is not None, f"a pass of {batch.num_tokens} tokens, of at most {self.tokens[-1]}"
        num_requests = power_of_two(len(batch.tail_starts))
        block = block_tokens(self.heads, self.kv_heads, int(np.maximum.reduce(request_sizes(batch))))
        num_tiles = tile_count(num_tokens, num_requests, block)
        return PassShape(
            num_tokens=num_tokens,
            num_outputs=min(num_tokens, power_of_two(len(batch.output_rows))),
            num_requests=num_requests,
            tail_words=power_of_two(batch.tail_bits.shape[1]) if batch.tail_bits.any() else 0,
            table_columns=batch.block_tables.shape[1],
            block_tokens=block,
            num_tiles=num_tiles,
            num_splits=self.splits(num_tiles, int(np.maximum.reduce(batch.slots)) + 1),
        )

    def splits(self, num_tiles: int, longest: int) -> int:
        """Parts of the keys, for so many tiles of requests of at most `longest` slots."""
        wanted = _PROGRAMS_A_MULTIPROCESSOR * self.multiprocessors // (num_tiles * self.kv_heads)
        useful = min(longest // LEAST_TOKENS_A_SPLIT, MOST_SPLITS)
        return 1 << max(min(wanted, useful).bit_length() - 1, 0)


def request_sizes(batch: Batch) -> Int64:
    """Tokens of each request of a batch, in order."""
    return np.diff(np.flatnonzero(np.diff(batch.request_rows, prepend=-1, append=-1)))


def power_of_two(count: int) -> int:
    """The least power of two that is not below `count`; 0 of 0."""
    return 1 << (count - 1).bit_length() if count else 0
