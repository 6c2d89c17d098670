"""A pass over one tree behind a context, for measuring."""

import numpy as np

from flexspec.codegen.batch import Batch
from flexspec.runtime.token_tree import TokenTree

BLOCK_SIZE = 16
"""Slots of a block of the cache, as engines have them."""


def blocks_for(slots: int) -> int:
    """Blocks that hold `slots` slots."""
    return -(-slots // BLOCK_SIZE)


def tree_batch(nodes: int, context: int, *, vocab: int) -> Batch:
    """A pass over a binary tree of `nodes` nodes, its root among them, behind `context` committed slots in blocks that lie in disorder.

    As engines do it, a single node is a chain.
    """
    rng = np.random.default_rng(0)
    tree = TokenTree(tokens=rng.integers(vocab, size=nodes).tolist(), parents=[(node - 1) // 2 if node else -1 for node in range(nodes)])
    slots = np.arange(context, context + nodes, dtype=np.int32)
    is_chain = nodes == 1
    return Batch(
        token_ids=np.array(tree.tokens, dtype=np.int64),
        positions=context + np.array(tree.depths(), dtype=np.int64),
        request_rows=np.zeros(nodes, dtype=np.int32),
        slots=slots,
        context_lens=slots + 1 if is_chain else np.full(nodes, context, dtype=np.int32),
        tail_starts=np.array([context], dtype=np.int32),
        tail_bits=np.zeros((nodes, 0), dtype=np.int32) if is_chain else tree.ancestor_bits(),
        block_tables=rng.permutation(blocks_for(context + nodes)).astype(np.int32)[None],
        output_rows=np.arange(nodes, dtype=np.int32),
    )


def visible(batch: Batch) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[nodes, slots] what each node of a `tree_batch` sees."""
    slots = np.arange(int(batch.slots[-1]) + 1)
    seen = slots[None, :] < batch.context_lens[:, None]
    start, words = int(batch.tail_starts[0]), batch.tail_bits.view(np.uint32)
    for word in range(words.shape[1]):
        for bit in range(32):
            slot = start + 32 * word + bit
            if slot < len(slots):
                seen[:, slot] |= (words[:, word] >> np.uint32(bit)) & 1 == 1
    return seen
