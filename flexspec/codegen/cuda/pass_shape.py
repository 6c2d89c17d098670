"""The sizes of a pass on a GPU: few enough that each can be captured once."""

from dataclasses import dataclass

import numpy as np

from flexspec.codegen.batch import Batch, Int64
from flexspec.codegen.cuda.kernels.combine_splits import MOST_SPLITS
from flexspec.codegen.cuda.tiles import block_tokens, tile_count

LEAST_KEYS_A_SPLIT = 128
"""Two steps of attention."""
_NEAR_BEST = 1.05
"""Fewer parts take less memory."""
_SPLITS = tuple(1 << power for power in range(MOST_SPLITS.bit_length()))
_KEYS_A_ROW = 0.75
"""A row of partial results costs as much as so many keys: it is written and read again, in float32, where a key and a value of 16
bits are read once; not all of it shows, for many rows wait for the matrix units."""


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
        sizes = request_sizes(batch)
        block = block_tokens(self.heads, self.kv_heads, int(np.maximum.reduce(sizes)))
        worked_on = int(np.add.reduce(-(-sizes // block)))
        longest = int(np.maximum.reduce(batch.slots)) + 1
        return PassShape(
            num_tokens=num_tokens,
            num_outputs=min(num_tokens, power_of_two(len(batch.output_rows))),
            num_requests=num_requests,
            tail_words=power_of_two(batch.tail_bits.shape[1]) if batch.tail_bits.any() else 0,
            table_columns=batch.block_tables.shape[1],
            block_tokens=block,
            num_tiles=tile_count(num_tokens, num_requests, block),
            num_splits=self.splits(worked_on, batch.num_tokens, longest),
        )

    def splits(self, num_tiles: int, num_tokens: int, longest: int) -> int:
        """Parts of the keys: 1, 2, 4 … 32, about those with which the busiest multiprocessor is done first; no fewer for longer texts.

        Args:
            num_tiles: query tiles, without empty ones.
            num_tokens: tokens in them.
            longest: slots of the longest request.
        """
        if not self.multiprocessors:
            return 1
        programs = num_tiles * self.kv_heads
        partial_keys = _KEYS_A_ROW * num_tokens * self.heads / programs

        def cost(splits: int) -> float:
            # In turns a multiprocessor works on a program's keys and writes its rows; all of them read the rows again.
            turns = -(-programs * splits // self.multiprocessors)
            read_again = programs * splits / self.multiprocessors
            return turns * longest / splits + (partial_keys * (turns + read_again) if splits > 1 else 0)

        costs = {splits: cost(splits) for splits in _SPLITS if splits == 1 or splits * LEAST_KEYS_A_SPLIT <= longest}
        enough = _NEAR_BEST * min(costs.values())
        return next(splits for splits, keys in costs.items() if keys <= enough)


def request_sizes(batch: Batch) -> Int64:
    """Tokens of each request of a batch, in order."""
    return np.diff(np.flatnonzero(np.diff(batch.request_rows, prepend=-1, append=-1)))


def power_of_two(count: int) -> int:
    """The least power of two that is not below `count`; 0 of 0."""
    return 1 << (count - 1).bit_length() if count else 0
