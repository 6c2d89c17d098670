"""The kernels as operators that a captured model is compiled with: on a GPU they launch, on a CPU their references run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.rope_write import rope_write, rope_write_reference
from flexspec.codegen.cuda.kernels.tree_attention import tree_attention, tree_attention_reference

_DEVICES = ("cuda", "cpu")


def _on_host(reference: Callable[..., Tensor], *given: Any, written: Sequence[Tensor] = (), **options: Any) -> Tensor:
    """Run a reference, which is there for the host's tensors; what it writes comes back to `written`, which are among `given`."""
    moved = [value.cpu() if isinstance(value, Tensor) else value for value in given]
    out = reference(*moved, **{name: value.cpu() if isinstance(value, Tensor) else value for name, value in options.items()})
    for tensor in written:
        (copy,) = (other for value, other in zip(given, moved, strict=True) if value is tensor)
        if copy is not tensor:
            tensor.copy_(copy)
    return out.to(given[0].device)


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
    interleaved: bool = False,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    by_reference: bool = False,
) -> Tensor:
    """Rotate queries and keys, and write keys and values to the cache; see `kernels.rope_write`.

    Args:
        q: [tokens, heads, head_dim].
        k: [tokens, kv_heads, head_dim]; v likewise.
        cos: [tokens, rotary_dim]; None for no rotation; sin likewise.
        keys: [slots, kv_heads, padded head_dim] of one layer; values likewise.
        interleaved: whether pairs are adjacent dims.
        k_scales: [kv_heads] of an 8-bit cache; v_scales likewise.
        by_reference: run the reference on a GPU too, by way of the host.

    Returns:
        The queries, [tokens, heads, head_dim].
    """
    run = rope_write if q.is_cuda and not by_reference else partial(_on_host, rope_write_reference, written=(keys, values))
    return run(
        q,
        k,
        v,
        cos,
        sin,
        keys,
        values,
        slots,
        request_rows,
        block_tables,
        block_size=block_size,
        interleaved=interleaved,
        k_scales=k_scales,
        v_scales=v_scales,
    )


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
    slopes: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    by_reference: bool = False,
) -> Tensor:
    """Attention of rotated queries over the cache; see `kernels.tree_attention`.

    Args:
        q: [tokens, heads, head_dim].
        keys: [slots, kv_heads, padded head_dim] of one layer; values likewise.
        tiles: [tiles, 4].
        slopes: [heads] float32.
        k_scales: [kv_heads] of an 8-bit cache; v_scales likewise.
        by_reference: run the reference on a GPU too, by way of the host.

    Returns:
        [tokens, heads, head_dim].
    """
    run = tree_attention if q.is_cuda and not by_reference else partial(_on_host, tree_attention_reference)
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
        slopes=slopes,
        k_scales=k_scales,
        v_scales=v_scales,
    )


@tree_attention_op.register_fake
def _tree_attention_fake(q: Tensor, *rest: object) -> Tensor:
    return q.new_empty(q.shape)
