"""Attention of flat tokens over a paged KV cache and the tails of token trees (SpecInfer, section 4): launcher and reference."""

import math
from typing import Any

import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.attention_plan import AttentionPlan, attention_plans, plan_attention
from flexspec.codegen.cuda.kernels.combine_splits import MOST_SPLITS, combine_splits
from flexspec.codegen.cuda.kernels.tree_attention_kernel import FLOAT_TENSORS, RUNTIME_INTEGERS, SMALL_TENSORS, tree_attention_kernel
from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget, device_target
from flexspec.ir.ops.tree_attention import visible_slots

# Wider than any text.
_NO_WINDOW = 1 << 30


def tree_attention(
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
    *,
    block_size: int,
    block_tokens: int,
    kv_heads: int,
    scale: float,
    num_splits: int = 1,
    window: int | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """Attention of each token over the slots it sees (see `flexspec.codegen.batch.Batch`), its own already written.

    Tensors of integers are int32. A score is scale * (q · k), then c * tanh(score / c) with a soft cap c, then plus slope * position
    of the key.

    Args:
        q: [N, heads, head_dim], rotated.
        keys: [physical slots, kv_heads, padded_head_dim] of one layer; zeros from head_dim on, whose products are summed too.
        values: as `keys`.
        tiles: [T, 4], of `flexspec.codegen.cuda.tiles.query_tiles`: first token, number of tokens, request row, 0.
        positions: [N].
        context_lens: [N].
        slots: [N], -1 for padding; a tile sees no slot beyond its tokens' own.
        tail_starts: [R].
        tail_bits: [N, W].
        block_tables: [R, B]; entries beyond a request's slots are never read.
        block_size: slots of a block, a power of two.
        block_tokens: the most tokens of a tile.
        kv_heads: KV heads; head h reads KV head h // (heads / kv_heads).
        scale: factor of the dot products.
        num_splits: parts that the keys of a tile are divided into, to be worked on side by side; at most 32.
        window: a token sees the last `window` positions up to its own.
        softcap: c.
        slopes: [heads] float32, ALiBi's.
        sinks: [heads] of any float type, a further logit a head that takes probability and gives nothing.
        k_scales: [kv_heads] float32, what an 8-bit cache's keys are multiplied with.
        v_scales: [kv_heads] float32, the same of values; given with `k_scales` or not at all.

    Returns:
        [N, heads, head_dim]; zeros for padding tokens, in a tile or not.

    Raises:
        UncoveredCase: if no specialisation is for these types and sizes.
    """
    num_tokens, heads, head_dim = q.shape
    group = heads // kv_heads
    num_words = tail_bits.shape[1]
    general = not (window is None and softcap is None and slopes is None)
    sizes = {"head_dim": head_dim, "rows": block_tokens * group}
    plan = plan_attention(device_target(q.device), q.dtype, keys.dtype, **sizes, has_tail=num_words > 0, general=general)
    _check(q, keys, values, (tiles, positions, context_lens, slots, tail_starts, tail_bits, block_tables), num_splits, block_size)
    subtiles = -(-block_tokens * group // plan.block_m)
    unused = torch.empty(4, dtype=torch.float32, device=q.device)
    if num_splits == 1:
        out, partial, log_sums = torch.zeros_like(q), unused, unused
    else:
        out = q
        partial = torch.empty((num_splits, *q.shape), dtype=torch.float32, device=q.device)
        log_sums = torch.empty((num_splits, num_tokens, heads), dtype=torch.float32, device=q.device)
    tree_attention_kernel[len(tiles) * subtiles, kv_heads, num_splits](
        *(q, keys, values, out, partial, log_sums),
        *(tiles, positions, context_lens, slots, tail_starts, tail_bits, block_tables),
        *(unused if tensor is None else tensor.float() for tensor in (slopes, sinks, k_scales, v_scales)),
        padded_dim=keys.shape[2],
        slot_stride=kv_heads * keys.shape[2],
        dim_eighths=head_dim // 8,
        group=group,
        subtiles=subtiles,
        num_tokens=num_tokens,
        table_stride=block_tables.shape[1],
        block_shift=block_size.bit_length() - 1,
        num_words=num_words,
        window=_NO_WINDOW if window is None else min(window, _NO_WINDOW),
        num_slopes=0 if slopes is None else heads,
        num_sinks=0 if sinks is None else heads,
        num_scales=0 if k_scales is None else kv_heads,
        scale=float(scale),
        softcap=0.0 if softcap is None else float(softcap),
        **_constants(plan),
        **launch_options(plan.num_warps, plan.num_stages),
    )
    return out if num_splits == 1 else combine_splits(partial, log_sums, slots, q.dtype)


def _check(q: Tensor, keys: Tensor, values: Tensor, integers: tuple[Tensor, ...], num_splits: int, block_size: int) -> None:
    if num_splits > MOST_SPLITS:
        raise UncoveredCase(f"tree attention in {num_splits} splits: there may be {MOST_SPLITS}")
    if keys.shape[2] % 16:
        raise UncoveredCase(f"tree attention, padded head size {keys.shape[2]} of the cache: it is a multiple of 16")
    assert block_size & (block_size - 1) == 0, f"block size {block_size}"
    assert all(tensor.is_contiguous() for tensor in (q, keys, values, *integers))
    assert all(tensor.dtype == torch.int32 for tensor in integers), [tensor.dtype for tensor in integers]
    assert all(tensor.data_ptr() % 16 == 0 for tensor in (q, keys, values))
    assert q.numel() < 1 << 31, f"queries {tuple(q.shape)}: offsets in them have 32 bits"


def _constants(plan: AttentionPlan) -> dict[str, Any]:
    return {
        "BLOCK_M": plan.block_m,
        "BLOCK_N": plan.block_n,
        "BLOCK_D": plan.block_d,
        "HAS_TAIL": plan.has_tail,
        "GENERAL": plan.general,
    }


def tree_attention_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `tree_attention` launches on `target`."""
    return [_variant(plan) for plan in attention_plans(target)]


def _variant(plan: AttentionPlan) -> KernelVariant:
    cache = "" if plan.cache_dtype == plan.dtype else f", {triton_type(plan.cache_dtype, is_pointer=False)} cache"
    masks = "window, soft cap, ALiBi" if plan.general else "tails" if plan.has_tail else "chains"
    constants = _constants(plan)
    return KernelVariant(
        kernel="tree_attention",
        case=f"{triton_type(plan.dtype, is_pointer=False)}{cache}, head size to {plan.block_d}, {plan.block_m} rows, {masks}",
        function=tree_attention_kernel,
        signature={
            "q": triton_type(plan.dtype),
            "keys": triton_type(plan.cache_dtype),
            "values": triton_type(plan.cache_dtype),
            "out": triton_type(plan.dtype),
            "partial": "*fp32",
            "log_sums": "*fp32",
            **{name: "*fp32" if name in FLOAT_TENSORS else "*i32" for name in SMALL_TENSORS},
            "padded_dim": "i32",
            "slot_stride": "i32",
            **dict.fromkeys(RUNTIME_INTEGERS, "i32"),
            "scale": "fp32",
            "softcap": "fp32",
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        divisible=frozenset({"q", "keys", "values", "out", "partial", "log_sums", "padded_dim", "slot_stride"}),
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )


def tree_attention_reference(
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
    *,
    block_size: int,
    block_tokens: int,
    kv_heads: int,
    scale: float,
    num_splits: int = 1,
    window: int | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """As `tree_attention`, token by token in PyTorch operators, in float32."""
    out = torch.zeros_like(q)
    num_heads, head_dim = q.shape[1:]
    group = num_heads // kv_heads
    for first, count, row, _ in tiles.tolist():
        for token in range(first, first + count):
            seen = visible_slots(token, row, context_lens, tail_starts, tail_bits)
            key_positions = torch.arange(len(seen))
            if window is not None:
                seen, key_positions = seen[-window:], key_positions[-window:]
            where = block_tables[row, seen // block_size].long() * block_size + seen % block_size
            # [kv_heads, seen, head_dim]
            key, value = (cache[where, :, :head_dim].float().transpose(0, 1) for cache in (keys, values))
            if k_scales is not None and v_scales is not None:
                key, value = key * k_scales[:, None, None], value * v_scales[:, None, None]
            scores = torch.einsum("kgd,ksd->kgs", q[token].float().view(kv_heads, group, head_dim), key) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if slopes is not None:
                scores = scores + slopes.view(kv_heads, group, 1) * key_positions
            sink = torch.full((num_heads,), -math.inf) if sinks is None else sinks.float()
            weights = torch.softmax(torch.cat([scores, sink.view(kv_heads, group, 1)], dim=-1), dim=-1)[..., :-1]
            out[token] = (weights @ value).view(num_heads, head_dim).to(q.dtype)
    return out
