"""`flexspec::tree_attention` for CPUs in PyTorch operators: one `scaled_dot_product_attention` a request.

Shapes are padded so that a row's result does not depend on what shares the pass: query rows (heads of a KV group times
tokens) to a multiple of 16, keys to a multiple of 64 in bfloat16 and 512 in float32 (on these the kernel's blocks fall
alike for every chunking).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from flexspec.ir.ops.attention import position_bias, scaled_scores, weighted_values
from flexspec.ir.ops.rope import rotate

_QUERY_ROWS = 16
_KEYS = {torch.bfloat16: 64, torch.float32: 512}


@dataclass(frozen=True, kw_only=True)
class _Span:
    """The tokens first … last-1 of one request, and the slots 0 … length-1 that any of them sees."""

    first: int
    last: int
    row: int
    length: int


def tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    request_rows: Tensor,
    slots: Tensor,
    context_lens: Tensor,
    tail_starts: Tensor,
    tail_bits: Tensor,
    block_tables: Tensor,
    block_size: int,
    layer: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    slopes: Tensor | None = None,
    interleaved: bool = False,
) -> Tensor:
    """As the dialect operator; see `flexspec.ir.ops.tree_attention`."""
    if cos is not None and sin is not None:
        q, k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
    head_dim = q.shape[-1]
    rows = request_rows.numpy()
    physical = _physical(block_tables.numpy(), rows, slots.numpy(), block_size)
    written = torch.from_numpy(physical)
    keys[layer, :, :, :head_dim].index_copy_(0, written, k.to(keys.dtype))
    values[layer, :, :, :head_dim].index_copy_(0, written, v.to(values.dtype))
    out = torch.empty_like(q)
    for span in _spans(rows, slots.numpy(), context_lens.numpy()):
        slot_range = np.arange(span.length, dtype=np.int64)
        where = torch.from_numpy(_physical(block_tables.numpy(), np.full(span.length, span.row), slot_range, block_size))
        mask, key_positions = _mask(span, context_lens.numpy(), tail_starts.numpy(), tail_bits.numpy(), window)
        k_seen = keys[layer, :, :, :head_dim].index_select(0, where).to(q.dtype)
        v_seen = values[layer, :, :, :head_dim].index_select(0, where).to(q.dtype)
        queries = q[span.first : span.last]
        if softcap is None and sinks is None and slopes is None:
            out[span.first : span.last] = _fused(queries, k_seen, v_seen, torch.from_numpy(mask), scale)
        else:
            scores = scaled_scores(queries, k_seen, scale, softcap) + position_bias(slopes, torch.from_numpy(key_positions))
            scores = scores.masked_fill(~torch.from_numpy(mask), float("-inf"))
            out[span.first : span.last] = weighted_values(scores, v_seen, sinks).to(q.dtype)
    return out


def _physical(
    tables: npt.NDArray[np.int32], rows: npt.NDArray[np.integer], slots: npt.NDArray[np.integer], block_size: int
) -> npt.NDArray[np.int64]:
    blocks: npt.NDArray[np.int64] = tables[rows, slots // block_size].astype(np.int64)
    return blocks * block_size + slots % block_size


def _spans(rows: npt.NDArray[np.int32], slots: npt.NDArray[np.int32], context_lens: npt.NDArray[np.int32]) -> list[_Span]:
    bounds = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
    return [
        _Span(first=a, last=b, row=int(rows[a]), length=int(max(slots[a:b].max() + 1, context_lens[a:b].max())))
        for a, b in pairwise(bounds)
    ]


def _mask(
    span: _Span,
    context_lens: npt.NDArray[np.int32],
    tail_starts: npt.NDArray[np.int32],
    tail_bits: npt.NDArray[np.int32],
    window: int | None,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """[tokens, slots] each: which slots a token sees, and the position of what is there on the token's own path."""
    context = context_lens[span.first : span.last, None]
    visible = np.arange(span.length)[None, :] < context
    start = int(tail_starts[span.row])
    if tail_bits.shape[1] and start < span.length:
        words = np.ascontiguousarray(tail_bits[span.first : span.last]).view(np.uint8)
        bits = np.unpackbits(words, axis=1, bitorder="little").astype(bool)
        width = min(bits.shape[1], span.length - start)
        visible[:, start : start + width] |= bits[:, :width]
    positions = visible.cumsum(axis=1) - 1  # slots ascend along a root path
    if window is not None:
        visible &= positions > positions[:, -1:] - window
    return visible, positions


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """q [tokens, heads, head_dim], k and v [slots, kv_heads, head_dim], mask [tokens, slots] → as q."""
    tokens, heads, head_dim = q.shape
    length, kv_heads = k.shape[0], k.shape[1]
    groups = heads // kv_heads
    rows = tokens * groups
    pad_rows, pad_keys = -rows % _QUERY_ROWS, -length % _KEYS[q.dtype]
    # [kv_heads, tokens * groups, head_dim]: the query heads of a KV head become rows of one product
    queries = F.pad(q.view(tokens, kv_heads, groups, head_dim).permute(1, 0, 2, 3).reshape(kv_heads, rows, head_dim), (0, 0, 0, pad_rows))
    padded = F.pad(mask.repeat_interleave(groups, dim=0), (0, pad_keys, 0, pad_rows))
    padded[rows:, 0] = True
    result = F.scaled_dot_product_attention(
        queries.unsqueeze(0),
        F.pad(k.permute(1, 0, 2), (0, 0, 0, pad_keys)).unsqueeze(0),
        F.pad(v.permute(1, 0, 2), (0, 0, 0, pad_keys)).unsqueeze(0),
        attn_mask=padded,
        scale=scale,
    )[0, :, :rows]
    return result.reshape(kv_heads, tokens, groups, head_dim).permute(1, 0, 2, 3).reshape(tokens, heads, head_dim)
