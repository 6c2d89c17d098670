"""The device side of `rope_write`: a program takes a token's query heads, or its key and value heads, a few at a time."""

import triton
import triton.language as tl

FLOATS = ("q", "k", "v", "cos", "sin", "rotated", "keys", "values")
SCALES = ("k_scales", "v_scales")
INTEGERS = ("slots", "request_rows", "block_tables")
STRIDES = tuple(f"{name}_{what}_units" for name in ("q", "k", "v", "cache") for what in ("token", "head"))
SIZES = ("table_stride", "heads", "kv_heads", "dim_units", "half_units", "block_size")


@triton.jit
def _store(target, x, like, scales, mask, CACHE_MAX: tl.constexpr):
    # x [heads, dims], float32 or of the type that `like` points to, as multiples of the heads' scales in an 8-bit cache.
    x = x.to(like.dtype.element_ty)
    if CACHE_MAX > 0:
        # Beyond the largest number is NaN.
        x = tl.minimum(tl.maximum(x.to(tl.float32) / scales, -CACHE_MAX), CACHE_MAX)
    tl.store(target, x.to(target.dtype.element_ty), mask=mask)


@triton.jit
def _turn(
    source, target, is_head, cos, sin, scales, dim, half, INTERLEAVED: tl.constexpr, CACHE_MAX: tl.constexpr, BLOCK_DIM: tl.constexpr
):
    # From where heads of a token lie, `source` [heads, 1], to `target`, the first 2 * half dims turned by the token's `cos` and `sin`.
    pairs = tl.arange(0, BLOCK_DIM // 2)[None, :]
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    is_turned = pairs < half
    # Every head loads these anew, out of the nearest cache: exchanging them between threads would take barriers.
    heads = tl.zeros([source.shape[0], 1], tl.int32)
    cos = cos + heads
    sin = sin + heads
    cos_first = tl.load(cos + pairs, mask=is_turned, other=1.0)
    sin_first = tl.load(sin + pairs, mask=is_turned, other=0.0)
    if INTERLEAVED:
        mask = is_head & (dims < dim)
        x = tl.load(source + dims, mask=mask, other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(x, [source.shape[0], BLOCK_DIM // 2, 2]))
        new_even = tl.where(is_turned, even * cos_first - odd * sin_first, even)
        new_odd = tl.where(is_turned, odd * cos_first + even * sin_first, odd)
        new = tl.reshape(tl.join(new_even, new_odd), [source.shape[0], BLOCK_DIM])
        _store(target + dims, new, source, scales, mask, CACHE_MAX)
    else:
        mask = is_head & is_turned
        cos_second = tl.load(cos + half + pairs, mask=is_turned, other=1.0)
        sin_second = tl.load(sin + half + pairs, mask=is_turned, other=0.0)
        first = tl.load(source + pairs, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + half + pairs, mask=mask, other=0.0).to(tl.float32)
        _store(target + pairs, first * cos_first - second * sin_first, source, scales, mask, CACHE_MAX)
        _store(target + half + pairs, second * cos_second + first * sin_second, source, scales, mask, CACHE_MAX)
        if 2 * half < dim:
            is_rest = is_head & (dims >= 2 * half) & (dims < dim)
            _store(target + dims, tl.load(source + dims, mask=is_rest), source, scales, is_rest, CACHE_MAX)


@triton.jit(do_not_specialize=[*STRIDES, *SIZES], do_not_specialize_on_alignment=[*SCALES, *INTEGERS])
def rope_write_kernel(
    q,  # [N, heads, dim], strided
    k,  # [N, kv_heads, dim], strided
    v,
    cos,  # [N, 2 * half]
    sin,
    rotated,  # [N, heads, dim]
    keys,  # [slots, kv_heads, dim or more]
    values,
    slots,  # [N]
    request_rows,  # [N]
    block_tables,  # [R, table_stride]
    k_scales,  # [kv_heads], for 8-bit caches
    v_scales,
    q_token_units,
    q_head_units,
    k_token_units,
    k_head_units,
    v_token_units,
    v_head_units,
    cache_token_units,
    cache_head_units,
    table_stride,
    heads,
    kv_heads,
    dim_units,
    half_units,
    block_size,
    INTERLEAVED: tl.constexpr,
    UNIT: tl.constexpr,
    CACHE_MAX: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEADS: tl.constexpr,
):
    # Strides and sizes come in units of UNIT elements, so that the compiler knows how addresses and masks are aligned.
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    dim = dim_units * UNIT
    half = half_units * UNIT
    cos = cos + token * 2 * half
    sin = sin + token * 2 * half
    query_groups = tl.cdiv(heads, HEADS)
    if group < query_groups:
        head = group * HEADS + tl.arange(0, HEADS)[:, None]
        source = q + token * q_token_units * UNIT + head * q_head_units * UNIT
        target = rotated + token * heads * dim + head * dim
        _turn(source, target, head < heads, cos, sin, 1.0, dim, half, INTERLEAVED, 0.0, BLOCK_DIM)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            head = (group - query_groups) * HEADS + tl.arange(0, HEADS)[:, None]
            is_head = head < kv_heads
            k_scale = 1.0
            v_scale = 1.0
            if CACHE_MAX > 0:
                k_scale = tl.load(k_scales + head, mask=is_head, other=1.0)
                v_scale = tl.load(v_scales + head, mask=is_head, other=1.0)
            row = tl.load(request_rows + token).to(tl.int64)
            block = tl.load(block_tables + row * table_stride + slot // block_size).to(tl.int64)
            start = (block * block_size + slot % block_size) * cache_token_units * UNIT
            source = k + token * k_token_units * UNIT + head * k_head_units * UNIT
            target = keys + start + head * cache_head_units * UNIT
            _turn(source, target, is_head, cos, sin, k_scale, dim, half, INTERLEAVED, CACHE_MAX, BLOCK_DIM)
            dims = tl.arange(0, BLOCK_DIM)[None, :]
            mask = is_head & (dims < dim)
            source = v + token * v_token_units * UNIT + head * v_head_units * UNIT + dims
            target = values + start + head * cache_head_units * UNIT + dims
            _store(target, tl.load(source, mask=mask), source, v_scale, mask, CACHE_MAX)
