"""The kernels as operators that a captured model is compiled with: on a GPU they launch, on a CPU their references run."""

import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.rope_write import rope_write, rope_write_reference
from flexspec.codegen.cuda.kernels.tree_attention import tree_attention, tree_attention_reference

_DEVICES = ("cuda", "cpu")


@torch.library.custom_op("flexspec_gpu::rope_write", mutates_args=("keys", "values"), device_types=_DEVICES)
def rope_write_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    request_rows: Tensor,
    block_tables: Tensor,
    block_size: int,
) -> Tensor:
    """Rotate queries and keys, and write keys and values to the cache; see `kernels.rope_write`.

    Args:
        q: [tokens, heads, head_dim].
        k: [tokens, kv_heads, head_dim]; v likewise.
        cos: [tokens, rotary_dim]; None for no rotation; sin likewise.
        keys: [slots, kv_heads, padded head_dim] of one layer; values likewise.

    Returns:
        The queries, [tokens, heads, head_dim].
    """
    run = rope_write if q.is_cuda else rope_write_reference
    return run(q, k, v, cos, sin, keys, values, slots, request_rows, block_tables, block_size=block_size)


@rope_write_op.register_fake
def _rope_write_fake(q: Tensor, *rest: object) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("flexspec_gpu::tree_attention", mutates_args=(), device_types=_DEVICES)
def tree_attention_op(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tiles: Tensor,
    positions: Tensor,
    context_lens: Tensor,
    slots: Tensor,
    tail_starts: Tensor,
    tail_bits: Tensor,
    block_tables: Tensor,
    block_size: int,
    block_tokens: int,
    num_splits: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of rotated queries over the cache; see `kernels.tree_attention`.

    Args:
        q: [tokens, heads, head_dim].
        keys: [slots, kv_heads, padded head_dim] of one layer; values likewise.
        tiles: [tiles, 4].

    Returns:
        [tokens, heads, head_dim].
    """
    run = tree_attention if q.is_cuda else tree_attention_reference
    return run(
        q,
        keys,
        values,
        tiles,
        positions,
        context_lens,
        slots,
        tail_starts,
        tail_bits,
        block_tables,
        block_size=block_size,
        block_tokens=block_tokens,
        kv_heads=keys.shape[1],
        scale=scale,
        num_splits=num_splits,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )


@tree_attention_op.register_fake
def _tree_attention_fake(q: Tensor, *rest: object) -> Tensor:
    return q.new_empty(q.shape)
