"""Lays trees and prefill chunks out as one flat batch."""

from collections.abc import Sequence

import numpy as np

from flexspec.codegen.batch import Batch, Int32
from flexspec.codegen.device_trees import GrownRows
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Request
from flexspec.runtime.scheduler import PrefillChunk
from flexspec.runtime.token_tree import TokenTree


class BatchBuilder:
    """Builds batches in buffers that it uses again: a batch is valid until the next one is built.

    Every token's slot number in its request is the number of text tokens before it, so that a chain's positions are its
    slots. Chains, plain decoding included, carry no bit rows; branching trees do, and then their root is in the tail too.

    Args:
        cache: reserves the tails and knows the block tables.
        pass_tokens: most tokens of a batch.
    """

    def __init__(self, cache: KVCache, *, pass_tokens: int) -> None:
        self._cache = cache
        self._token_ids = np.zeros(pass_tokens, dtype=np.int64)
        self._positions = np.zeros(pass_tokens, dtype=np.int64)
        self._request_rows = np.zeros(pass_tokens, dtype=np.int32)
        self._slots = np.zeros(pass_tokens, dtype=np.int32)
        self._context_lens = np.zeros(pass_tokens, dtype=np.int32)
        self._counting = np.arange(pass_tokens, dtype=np.int32)

    def build(self, trees: Sequence[tuple[Request, TokenTree]], chunks: Sequence[PrefillChunk], grown: GrownRows | None = None) -> Batch:
        """Reserve a tail for every request and describe the pass: all trees, then all chunks.

        The output rows are the nodes of the trees in order, then of each chunk its last `num_outputs` tokens.

        Args:
            trees: the requests that decode; where `grown` is given, all that is read of a tree is its root and its size.
            chunks: the prompts.
            grown: what the device knows of the trees.
        """
        starts: list[int] = []
        bit_rows: list[tuple[int, Int32]] = []
        end = 0
        for request, tree in trees:
            begin, end = end, end + len(tree.tokens)
            start = self._place(request, len(starts), begin, end)
            starts.append(start)
            self._token_ids[begin:end] = tree.tokens
            if grown is not None:
                self._positions[begin:end] = start
                self._context_lens[begin:end] = start
                bit_rows.append((begin, _root_bits(end - begin)))
            elif not tree.is_chain():
                self._positions[begin:end] = tree.depths()
                self._positions[begin:end] += start
                self._context_lens[begin:end] = start
                bit_rows.append((begin, tree.ancestor_bits()))
        num_tree_tokens = end
        chunk_rows: list[Int32] = []
        for chunk in chunks:
            begin, end = end, end + chunk.count
            request = chunk.request
            starts.append(self._place(request, len(starts), begin, end))
            self._token_ids[begin:end] = request.tokens[request.num_computed : request.num_computed + chunk.count]
            chunk_rows.append(self._counting[end - chunk.num_outputs : end])
        output_rows = self._counting[:num_tree_tokens]
        return Batch(
            token_ids=self._token_ids[:end],
            positions=self._positions[:end],
            request_rows=self._request_rows[:end],
            slots=self._slots[:end],
            context_lens=self._context_lens[:end],
            tail_starts=np.array(starts, dtype=np.int32),
            tail_bits=_tail_bits(end, bit_rows),
            block_tables=self._block_tables([request for request, _ in trees] + [chunk.request for chunk in chunks]),
            output_rows=np.concatenate([output_rows, *chunk_rows]) if chunk_rows else output_rows,
            grown=grown,
        )

    def _place(self, request: Request, row: int, begin: int, end: int) -> int:
        """Reserve slots for tokens begin … end-1 of the batch, laid out as a chain; return the first slot."""
        count = end - begin
        start = self._cache.reserve(request.request_id, count)
        self._request_rows[begin:end] = row
        slots = self._slots[begin:end]
        np.add(self._counting[:count], start, out=slots)
        self._positions[begin:end] = slots
        np.add(slots, 1, out=self._context_lens[begin:end])
        return start

    def _block_tables(self, requests: Sequence[Request]) -> Int32:
        tables = [self._cache.block_table(request.request_id) for request in requests]
        return np.stack(tables) if len(tables) > 1 else tables[0][np.newaxis]


def _root_bits(num_nodes: int) -> Int32:
    """[num_nodes, words]: of a tree's bit rows, that of its root."""
    bits = np.zeros((num_nodes, -(-num_nodes // 32)), dtype=np.int32)
    bits[0, 0] = 1
    return bits


def _tail_bits(num_tokens: int, bit_rows: Sequence[tuple[int, Int32]]) -> Int32:
    """[num_tokens, W]: the bit rows of the branching trees, as wide as the widest of them."""
    bits = np.zeros((num_tokens, max((rows.shape[1] for _, rows in bit_rows), default=0)), dtype=np.int32)
    for begin, rows in bit_rows:
        bits[begin : begin + rows.shape[0], : rows.shape[1]] = rows
    return bits
