"""The device side of tree attention.

A program takes a tile of one request's tokens, one KV head and one part of the keys. Its rows are tokens times the query
heads that share the KV head, so that a tree's tokens and a group's heads fill the matrix units together. Key blocks that
every row sees whole go through a loop without a mask; the others, a few at either end, read the tokens' context lengths and,
where the pass has any, their bit rows. Scores are kept in units of log 2.
"""

import triton
import triton.language as tl

from flexspec.codegen.cuda.kernels.tail_mask import bits_below, either, has_bits, shifted_words

_LOG2E = tl.constexpr(1.4426950408889634)

# Launches differ in these without needing another specialisation.
RUNTIME_INTEGERS = (
    *("dim_eighths", "group", "subtiles", "num_tokens", "table_stride", "block_shift", "num_words", "window"),
    *("num_slopes", "num_sinks", "num_scales"),
)
FLOAT_TENSORS = ("slopes", "sinks", "k_scales", "v_scales")
SMALL_TENSORS = (
    *("tiles", "positions", "context_lens", "slots", "tail_starts", "tail_bits", "block_tables"),
    *FLOAT_TENSORS,
)


@triton.jit
def _rows(first_row, num_rows, first_token, group, BLOCK_M: tl.constexpr):
    """Of each row of a program: whether it exists, its token, query head, and line of [tokens, heads].

    Rows that don't exist have the places of the last one that does: they read what it reads, and are not written.
    """
    row = first_row + tl.arange(0, BLOCK_M)
    exists = row < num_rows
    row = tl.minimum(row, num_rows - 1)
    token = first_token + row // group
    head = tl.program_id(1) * group + row % group
    return exists, token, head, token * (tl.num_programs(1) * group) + head


@triton.jit
def _seen(position, context, slot, window, BLOCK_N: tl.constexpr, GENERAL: tl.constexpr):
    """What a program's tokens see, padding aside, whose slots are negative and which would see nothing.

    Returns:
        The first slot that any sees, the longest context, the slots up to the last that any sees, and the first key block that
        every token sees whole and the one after the last.
    """
    is_token = slot >= 0
    num_keys = tl.max(slot) + 1
    first_key = 0
    whole_from = 0
    if GENERAL:
        oldest = position - window + 1
        first_key = tl.maximum(tl.min(tl.where(is_token, oldest, num_keys)), 0)
        whole_from = tl.cdiv(tl.maximum(tl.max(tl.where(is_token, oldest, 0)), 0), BLOCK_N)
    return first_key, tl.max(context), num_keys, whole_from, tl.min(tl.where(is_token, context, num_keys)) // BLOCK_N


@triton.jit
def _key_blocks(first_key, num_keys, whole_from, whole_to, BLOCK_N: tl.constexpr):
    """This split's part of the key blocks first_key … num_keys-1, and the part of it that every row sees whole.

    Args:
        whole_from: the first block that every row sees whole; whole_to: the one after the last.

    Returns:
        begin, end, whole_from, whole_to with begin <= whole_from <= whole_to <= end.
    """
    first_block = first_key // BLOCK_N
    last_block = tl.cdiv(num_keys, BLOCK_N)
    per_split = tl.cdiv(last_block - first_block, tl.num_programs(2))
    begin = tl.minimum(first_block + tl.program_id(2) * per_split, last_block)
    end = tl.minimum(begin + per_split, last_block)
    whole_from = tl.minimum(tl.maximum(whole_from, begin), end)
    return begin, end, whole_from, tl.maximum(tl.minimum(whole_to, end), whole_from)


@triton.jit
def _cache_rows(table, key_slot, slot_stride, block_shift, mask):
    """Where in the cache slots lie, int64 [slots]; `mask` says which of them the block table knows."""
    page = tl.load(table + (key_slot >> block_shift), mask=mask, other=0).to(tl.int64)
    return ((page << block_shift.to(tl.int64)) + (key_slot & ((1 << block_shift) - 1))) * slot_stride


@triton.jit
def _scores(query, key, scale, softcap, GENERAL: tl.constexpr):
    scores = tl.dot(query, key, input_precision="ieee") * scale
    if GENERAL:
        if softcap > 0:
            # c * tanh(x / c), tanh(y) being 1 - 2 / (exp(2 y) + 1)
            scores = softcap * _LOG2E * (1.0 - 2.0 / (tl.exp2(scores * (2.0 / softcap)) + 1.0))
    return scores


@triton.jit
def _accumulate(scores, value, best, total, result, SEES_NONE: tl.constexpr):
    """One step of the online softmax; SEES_NONE: a row may see no key so far."""
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    base = tl.where(new_best == -float("inf"), 0.0, new_best) if SEES_NONE else new_best
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, axis=1)
    result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None], input_precision="ieee")
    return new_best, total, result


@triton.jit
def _attend_whole_blocks(
    query, cache, kept_dim, scoring, position, whole_from, whole_to, softmax, BLOCK_N: tl.constexpr, GENERAL: tl.constexpr
):
    """Go through key blocks that every row sees whole.

    Args:
        cache: keys and values of the KV head, row of the block table, stride of a slot, and the number of bits in a block's size.
        scoring: factor of the dot products, soft cap, and the rows' slopes.
        softmax: the rows' largest scores, sums of weights, and weighted sums of values.

    Returns:
        The latter.
    """
    keys, values, table, slot_stride, block_shift = cache
    scale, softcap, slope = scoring
    best, total, result = softmax
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, kept_dim.shape[0])
    for block in tl.range(whole_from, whole_to):
        key_slot = block * BLOCK_N + columns
        offsets = _cache_rows(table, key_slot, slot_stride, block_shift, key_slot >= 0)
        key = tl.load(keys + offsets[None, :] + dims[:, None], mask=kept_dim[:, None], other=0.0).to(query.dtype)
        value = tl.load(values + offsets[:, None] + dims[None, :], mask=kept_dim[None, :], other=0.0).to(query.dtype)
        scores = _scores(query, key, scale, softcap, GENERAL)
        if GENERAL:
            scores += slope[:, None] * (key_slot[None, :] - position[:, None]).to(tl.float32)
        best, total, result = _accumulate(scores, value, best, total, result, SEES_NONE=False)
    return best, total, result


@triton.jit
def _attend_edges(
    query, cache, kept_dim, scoring, rows, tail, seen, blocks, softmax, BLOCK_N: tl.constexpr, HAS_TAIL: tl.constexpr, GENERAL: tl.constexpr
):
    """Go through what is left at either end, in blocks as wide as a word of a bit row; arguments as above, and:

    Args:
        rows: position, oldest position seen, and context length of each.
        tail: bit rows, where in them the rows' own begin, their words, and the first slot of the tail.
        seen: the first slot that any row sees, the longest context, and the slots up to the last that any sees.
        blocks: as `_key_blocks` gives.
    """
    keys, values, table, slot_stride, block_shift = cache
    scale, softcap, slope = scoring
    position, oldest, context = rows
    tail_bits, row_starts, num_words, tail_start = tail
    first_key_seen, longest_context, num_keys = seen
    begin, end, whole_from, whole_to = blocks
    best, total, result = softmax
    columns = tl.arange(0, 32)
    lanes = columns.to(tl.uint32)
    dims = tl.arange(0, kept_dim.shape[0])
    before = (whole_from - begin) * (BLOCK_N // 32)
    after = tl.minimum(end * (BLOCK_N // 32), tl.cdiv(num_keys, 32)) - whole_to * (BLOCK_N // 32)
    for index in tl.range(0, before + tl.maximum(after, 0), num_stages=1):
        first_key = 32 * index + tl.where(index < before, begin * BLOCK_N, whole_to * BLOCK_N - 32 * before)
        key_slot = first_key + columns
        # A slot that no row sees may hold anything, and nothing times NaN is NaN.
        is_seen = (key_slot >= first_key_seen) & (key_slot < longest_context)
        sees = key_slot[None, :] < context[:, None]
        key_position = key_slot[None, :]
        if HAS_TAIL:
            word = shifted_words(tail_bits, row_starts, num_words, first_key - tail_start)
            if GENERAL:
                below = bits_below(tail_bits, row_starts, num_words, first_key - tail_start, word)
                key_position = tl.where(sees, key_position, tail_start + below)
            sees |= has_bits(word[:, None], lanes[None, :])
            is_seen |= has_bits(tl.reduce(word, 0, either), lanes)
        if GENERAL:
            sees &= key_position >= oldest[:, None]
            bias = tl.where(sees, slope[:, None] * (key_position - position[:, None]).to(tl.float32), -float("inf"))
        offsets = _cache_rows(table, key_slot, slot_stride, block_shift, is_seen)
        key = tl.load(keys + offsets[None, :] + dims[:, None], mask=is_seen[None, :] & kept_dim[:, None], other=0.0).to(query.dtype)
        value = tl.load(values + offsets[:, None] + dims[None, :], mask=is_seen[:, None] & kept_dim[None, :], other=0.0).to(query.dtype)
        scores = _scores(query, key, scale, softcap, GENERAL)
        if GENERAL:
            scores = tl.where(bias > -float("inf"), scores + bias, bias)
        else:
            scores = tl.where(sees, scores, -float("inf"))
        best, total, result = _accumulate(scores, value, best, total, result, SEES_NONE=True)
    return best, total, result


@triton.jit(do_not_specialize=[*RUNTIME_INTEGERS], do_not_specialize_on_alignment=[*SMALL_TENSORS])
def tree_attention_kernel(
    q,  # [tokens, heads, head_dim]
    keys,  # [physical slots, kv_heads, padded_dim]
    values,
    out,  # as q; written by passes with one split
    partial,  # [splits, tokens, heads, head_dim] float32; written by passes with several
    log_sums,  # [splits, tokens, heads] float32: log 2 of the sums of weights
    tiles,  # [tiles, 4]
    positions,  # [tokens]
    context_lens,
    slots,
    tail_starts,  # [requests]
    tail_bits,  # [tokens, num_words]
    block_tables,  # [requests, table_stride]
    slopes,  # [heads]
    sinks,
    k_scales,  # [kv_heads]
    v_scales,
    padded_dim,
    slot_stride,
    dim_eighths,
    group,
    subtiles,
    num_tokens,
    table_stride,
    block_shift,
    num_words,
    window,
    num_slopes,
    num_sinks,
    num_scales,
    scale,
    softcap,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    GENERAL: tl.constexpr,
):
    tile = tl.program_id(0) // subtiles
    first_row = tl.program_id(0) % subtiles * BLOCK_M
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_rows = tl.load(tiles + 4 * tile + 1) * group
    if first_row >= num_rows:
        return
    first_token = tl.load(tiles + 4 * tile)
    request = tl.load(tiles + 4 * tile + 2)

    _, token, head, line = _rows(first_row, num_rows, first_token, group, BLOCK_M)
    position = tl.load(positions + token) if GENERAL else token
    first_key_seen, longest_context, num_keys, whole_from, whole_to = _seen(
        position, tl.load(context_lens + token), tl.load(slots + token), window, BLOCK_N, GENERAL
    )
    begin, end, whole_from, whole_to = _key_blocks(first_key_seen, num_keys, whole_from, whole_to, BLOCK_N)

    dims = tl.arange(0, BLOCK_D)
    head_dim = dim_eighths * 8
    real_dim = dims < head_dim
    # Zeros from head_dim on, which makes 16-byte loads of 8-bit caches.
    kept_dim = dims < padded_dim
    query_offsets = (line * dim_eighths * 8)[:, None] + dims[None, :]
    query = tl.load(q + query_offsets, mask=real_dim[None, :], other=0.0)
    table = block_tables + request.to(tl.int64) * table_stride
    cache = (keys + kv_head * padded_dim, values + kv_head * padded_dim, table, slot_stride, block_shift)
    score_scale = tl.load(k_scales + kv_head, mask=kv_head < num_scales, other=1.0) * scale * _LOG2E
    best = tl.load(sinks + head, mask=head < tl.where(split == 0, num_sinks, 0), other=-float("inf")) * _LOG2E
    slope = 0.0
    if GENERAL:
        # Counted from the token's own position: that changes no weight but a sink's, and far down a text no precision is lost.
        slope = tl.load(slopes + head, mask=head < num_slopes, other=0.0) * _LOG2E
        best -= slope * position.to(tl.float32)
    scoring = (score_scale, softcap, slope)
    softmax = (best, tl.where(best == -float("inf"), 0.0, 1.0), tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32))
    softmax = _attend_whole_blocks(query, cache, kept_dim, scoring, position, whole_from, whole_to, softmax, BLOCK_N, GENERAL)

    tail_start = tl.load(tail_starts + request)
    # Here and below: read again, lest the rows' places, in the layouts that are needed later, take up registers all along.
    again = tl.load(tiles + 4 * tile, volatile=True) - first_token
    _, token, head, line = _rows(first_row + again, num_rows, first_token, group, BLOCK_M)
    context = tl.load(context_lens + token)
    position = tl.load(positions + token) if GENERAL else token
    best, total, result = _attend_edges(
        *(query, cache, kept_dim, scoring),
        rows=(position, position - window + 1, context),
        tail=(tail_bits, token * num_words, num_words, tail_start),
        seen=(first_key_seen, longest_context, num_keys),
        blocks=(begin, end, whole_from, whole_to),
        softmax=softmax,
        BLOCK_N=BLOCK_N,
        HAS_TAIL=HAS_TAIL,
        GENERAL=GENERAL,
    )

    again = tl.load(tiles + 4 * tile, volatile=True) - first_token
    exists, token, head, line = _rows(first_row + again, num_rows, first_token, group, BLOCK_M)
    # What padding came to in blocks that all tokens see is nothing that anyone asked for.
    exists &= tl.load(slots + token) >= 0
    query_offsets = (line * dim_eighths * 8)[:, None] + dims[None, :]
    safe_total = tl.where(total == 0.0, 1.0, total)
    result *= (tl.load(v_scales + kv_head, mask=kv_head < num_scales, other=1.0) / safe_total)[:, None]
    if tl.num_programs(2) == 1:
        tl.store(out + query_offsets, result.to(query.dtype), mask=exists[:, None] & real_dim[None, :])
    else:
        # A split without keys for a row leaves its partial result unwritten: its weight is 0, and the reduction doesn't read it.
        place = split.to(tl.int64) * num_tokens * (tl.num_programs(1) * group)
        sums = tl.where(total == 0.0, -float("inf"), best + tl.log2(safe_total))
        tl.store(log_sums + place + line, sums, mask=exists)
        tl.store(partial + place * head_dim + query_offsets, result, mask=(exists & (total > 0.0))[:, None] & real_dim[None, :])
