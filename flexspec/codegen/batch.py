"""One forward pass as the compiled model sees it: a flat list of tokens of many requests."""

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from flexspec.codegen.device_trees import GrownRows

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(kw_only=True, slots=True, eq=False)
class Batch:
    """N flat tokens of R requests, where their keys and values go, and what each of them sees.

    A token sees the slots 0 … context_lens-1 of its request, and those tail slots whose bit is set in its row: bit i of
    the row (int32 word i // 32, bit i % 32) stands for slot tail_starts[request] + i. A child's row is its parent's row
    plus its own bit, so ascending slots are the root path. In a chain (a prefill chunk, plain decoding) a token's
    context ends with its own slot and its bit row is empty. The logical index of what a token sees (context slots in
    order, then its tail slots in order) equals the position of what it sees: the window of sliding attention counts so.

    Attributes:
        token_ids: [N].
        positions: [N], the tokens' positions in their own text.
        request_rows: [N], the row of `block_tables` and `tail_starts` that a token belongs to; tokens of a request
            are adjacent.
        slots: [N], the slot of its request where a token's key and value are written.
        context_lens: [N], how many slots a token sees from slot 0 on.
        tail_starts: [R].
        tail_bits: [N, W]; W may be 0.
        block_tables: [R, B]; slot s of a request lies at
            block_tables[row, s // block_size] * block_size + s % block_size of the cache.
        output_rows: [M], the tokens whose logits are wanted, in this order.
        grown: tokens that the device has to complete, of which models are told that `completes_batches`; None if the batch is complete.
    """

    token_ids: Int64
    positions: Int64
    request_rows: Int32
    slots: Int32
    context_lens: Int32
    tail_starts: Int32
    tail_bits: Int32
    block_tables: Int32
    output_rows: Int32
    grown: GrownRows | None = None

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.token_ids)

    def copy(self) -> "Batch":
        """The same, in memory of its own."""
        arrays = {one.name: getattr(self, one.name).copy() for one in fields(self) if one.name != "grown"}
        return replace(self, **arrays)


def chain_batch(token_ids: Int64, *, start: int = 0, block_table: Int32 | None = None, output_rows: Int32 | None = None) -> Batch:
    """A batch of one request whose tokens follow slot `start` one after the other; all rows put out by default."""
    n = len(token_ids)
    slots = np.arange(start, start + n, dtype=np.int32)
    return Batch(
        token_ids=np.ascontiguousarray(token_ids, dtype=np.int64),
        positions=slots.astype(np.int64),
        request_rows=np.zeros(n, dtype=np.int32),
        slots=slots,
        context_lens=slots + 1,
        tail_starts=np.zeros(1, dtype=np.int32),
        tail_bits=np.zeros((n, 0), dtype=np.int32),
        block_tables=np.zeros((1, 1), dtype=np.int32) if block_table is None else block_table,
        output_rows=np.arange(n, dtype=np.int32) if output_rows is None else output_rows,
    )
