"""The best tokens at a node: of each part of the vocabulary by one program, then merged."""

import triton
import triton.language as tl

from flexspec.codegen.cuda.kernels.philox import adjacent_words, philox_words, to_gumbel

SPLIT_INTEGERS = ("num_columns", "k", "splits")
MERGE_INTEGERS = ("k", "splits", "has_map")
SMALL = (
    *("slots", "positions", "request_rows", "temperatures", "seeds", "completions", "alphas", "token_ids"),
    *("keys", "columns", "peaks", "sums", "ids", "log_probs"),
)
"""Arguments of which few numbers are read or written: nothing is gained by knowing how they are aligned."""
LEAST_TEMPERATURE = tl.constexpr(1e-30)


@triton.jit
def _noise(ids, index, seed, completion):
    """The noise of single tokens."""
    word0, word1, word2, word3 = philox_words(ids // 4, index, index * 0, seed, completion)
    lane = ids % 4
    return to_gumbel(tl.where(lane < 2, tl.where(lane == 0, word0, word1), tl.where(lane == 2, word2, word3)))


@triton.jit(do_not_specialize=list(SPLIT_INTEGERS), do_not_specialize_on_alignment=list(SMALL))
def split_top(
    logits,  # [N, stride]
    slots,  # [N]
    positions,  # [N]
    request_rows,  # [N]
    temperatures,  # [R]
    seeds,  # [R]
    completions,  # [R]
    alphas,  # [R]
    token_ids,  # [num_columns]
    keys,  # [N, splits, k] what the best go by
    columns,  # [N, splits, k]
    peaks,  # [N, splits] the largest of what shares are made of, and the sum of exponentials less that
    sums,  # [N, splits]
    stride,
    num_columns,
    k,
    splits,
    IS_NOISY: tl.constexpr,
    HAS_MAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    node = tl.program_id(0)
    split = tl.program_id(1)
    if tl.load(slots + node) < 0:
        return
    request = tl.load(request_rows + node)
    temperature = tl.load(temperatures + request)
    divisor = tl.where(temperature > 0, tl.maximum(temperature, LEAST_TEMPERATURE), 1.0)
    first = split * BLOCK
    places = first + tl.arange(0, BLOCK)
    # Only the row's end may cut a vector of numbers that is loaded at once.
    raw = tl.load(logits + node.to(tl.int64) * stride + places, mask=places < stride, other=-float("inf")).to(tl.float32)
    raw = tl.where(places < num_columns, raw, -float("inf"))
    is_bad = tl.sum(((raw != raw) | (raw == float("inf"))).to(tl.int32)) > 0
    raw = tl.where(raw < float("inf"), raw, -float("inf"))
    if IS_NOISY:
        index = tl.load(positions + node) + 1
        if HAS_MAP:
            ids = tl.load(token_ids + places, mask=places < num_columns, other=0)
            noise = _noise(ids, index, tl.load(seeds + request), tl.load(completions + request))
        else:
            noise = to_gumbel(adjacent_words(first // 4, index, index * 0, tl.load(seeds + request), tl.load(completions + request), BLOCK))
        values = raw.to(tl.float64) / divisor
        key = values + tl.where(temperature > 0, tl.load(alphas + request), 0.0) * noise
        share = values + tl.where(temperature > 0, 1.0, 0.0) * noise
        rate = tl.full([], 1.0, tl.float64)
    else:
        key = raw
        share = raw
        rate = divisor.to(tl.float32)
    peak = tl.max(share)
    total = tl.sum(tl.exp((share - tl.where(peak > -float("inf"), peak, 0.0)) / rate))
    part = node.to(tl.int64) * splits + split
    tl.store(peaks + part, peak)
    tl.store(sums + part, tl.where(is_bad, float("nan"), total))
    for rank in range(k):
        best, place = tl.max(key, axis=0, return_indices=True)
        tl.store(keys + part * k + rank, best)
        tl.store(columns + part * k + rank, first + place)
        key = tl.where(places == first + place, -float("inf"), key)


@triton.jit(do_not_specialize=list(MERGE_INTEGERS), do_not_specialize_on_alignment=list(SMALL))
def merge_top(
    slots,  # these as in `split_top`
    positions,
    request_rows,
    temperatures,
    seeds,
    completions,
    alphas,
    token_ids,
    keys,
    columns,
    peaks,
    sums,
    ids,  # [N, k]
    log_probs,  # [N, k]
    k,
    splits,
    has_map,
    IS_NOISY: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    MOST: tl.constexpr,
):
    node = tl.program_id(0).to(tl.int64)
    if tl.load(slots + node) < 0:
        for rank in range(k):
            tl.store(ids + node * k + rank, -1)
            tl.store(log_probs + node * k + rank, -float("inf"))
        return
    request = tl.load(request_rows + node)
    temperature = tl.load(temperatures + request)
    divisor = tl.where(temperature > 0, tl.maximum(temperature, LEAST_TEMPERATURE), 1.0)
    parts = tl.arange(0, MOST_SPLITS)
    part_peaks = tl.load(peaks + node * splits + parts, mask=parts < splits, other=-float("inf"))
    part_sums = tl.load(sums + node * splits + parts, mask=parts < splits, other=0.0)
    peak = tl.max(part_peaks)
    base = tl.where(peak > -float("inf"), peak, 0.0)
    rate = tl.full([], 1.0, tl.float64) if IS_NOISY else divisor.to(tl.float32)
    total = tl.sum(part_sums * tl.exp((part_peaks - base) / rate))
    is_good = total > 0  # not where there is a NaN
    log_total = tl.log(tl.where(is_good, total, 1.0))
    places = tl.arange(0, MOST)
    key = tl.load(keys + node * splits * k + places, mask=places < splits * k, other=-float("inf"))
    column = tl.load(columns + node * splits * k + places, mask=places < splits * k, other=0)
    for rank in range(k):
        best, place = tl.max(key, axis=0, return_indices=True)
        token = tl.sum(tl.where(places == place, column, 0))
        token = tl.load(token_ids + token, mask=has_map != 0, other=token)
        value = best
        if IS_NOISY:
            noise = _noise(token, tl.load(positions + node) + 1, tl.load(seeds + request), tl.load(completions + request))
            value += tl.where(temperature > 0, 1.0 - tl.load(alphas + request), 0.0) * noise
        is_found = is_good & (best > -float("inf"))
        tl.store(ids + node * k + rank, tl.where(is_found, token, -1))
        log_prob = ((value - base) / rate - log_total).to(tl.float32)
        tl.store(log_probs + node * k + rank, tl.where(is_found, log_prob, -float("inf")))
        key = tl.where(places == place, -float("inf"), key)
