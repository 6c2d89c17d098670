"""`flexspec::tree_attention`: rotary embedding, KV write, and attention of flat tokens over slots and tree tails.

The one attention operator of the runtime: a prefill chunk is a chain, plain decoding a tree of one node, verification a
tree (SpecInfer, section 4). What a token sees is described by the batch tensors; see `flexspec.codegen.batch.Batch`.
"""

import torch
from torch import Tensor

from flexspec.ir.ops.attention import position_bias, scaled_scores, weighted_values
from flexspec.ir.ops.library import define
from flexspec.ir.ops.rope import rotate


def visible_slots(token: int, request: int, context_lens: Tensor, tail_starts: Tensor, tail_bits: Tensor) -> Tensor:
    """Slots that a token sees, in path order, int64 [seen]."""
    context = torch.arange(int(context_lens[token]))
    tail = [
        int(tail_starts[request]) + 32 * word + bit
        for word, row in enumerate(tail_bits[token].tolist())
        for bit in range(32)
        if (row >> bit) & 1
    ]
    return torch.cat([context, torch.tensor(tail, dtype=torch.int64)])


def _reference(
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
    if cos is not None and sin is not None:
        q, k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
    rows = request_rows.long()
    head_dim = q.shape[-1]

    def physical(row: int | Tensor, slot: Tensor) -> Tensor:
        return block_tables[row, slot // block_size].long() * block_size + slot % block_size

    written = physical(rows, slots.long())
    keys[layer, written, :, :head_dim] = k.to(keys.dtype)
    values[layer, written, :, : v.shape[-1]] = v.to(values.dtype)
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    for token in range(q.shape[0]):
        row = int(rows[token])
        seen = visible_slots(token, row, context_lens, tail_starts, tail_bits)
        key_positions = torch.arange(len(seen))
        if window is not None:
            seen, key_positions = seen[-window:], key_positions[-window:]
        where = physical(row, seen)
        scores = scaled_scores(q[token : token + 1], keys[layer, where, :, :head_dim], scale, softcap)
        scores = scores + position_bias(slopes, key_positions)
        out[token] = weighted_values(scores, values[layer, where, :, : v.shape[-1]], sinks)[0].to(q.dtype)
    return out


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


# q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; cos, sin: [tokens, rotary_dim];
# keys, values: [layers, physical slots, kv_heads, padded head_dim], written in place; sinks, slopes: [heads]; result as q.
TREE_ATTENTION = define(
    "tree_attention(Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor(a!) keys, Tensor(b!) values, "
    "Tensor positions, Tensor request_rows, Tensor slots, Tensor context_lens, Tensor tail_starts, Tensor tail_bits, "
    "Tensor block_tables, int block_size, int layer, float scale, int? window, float? softcap, Tensor? sinks, "
    "Tensor? slopes=None, bool interleaved=False) -> Tensor",
    reference=_reference,
    fake=_fake,
)
