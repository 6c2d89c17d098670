"""The device side of `tree_verify`: the best token of every node, then a walk of each tree by these."""

import triton
import triton.language as tl

from flexspec.codegen.cuda.kernels.philox import adjacent_words, to_gumbel

TREES = ("tokens", "parents", "node_starts")
KEYS = ("seeds", "completions", "indices", "temperatures")
CUTS = ("cut_logits", "cut_ids")
BEST = ("best_logits", "best_noises", "best_ids")
RESULTS = ("paths", "lengths", "bonus")
BEST_SIZES = ("num_requests", "row_units", "vocab_units", "split_chunks", "has_cuts")
WALK_SIZES = ("num_splits", "max_depth")

_LAST = tl.constexpr(2**31 - 1)
"""No id and no node is as large."""
_INFINITE = tl.constexpr(1e100)
"""Stands for infinity: beyond all logits, but the difference of two is a number."""
_GUMBEL_STREAM = tl.constexpr(0)


@triton.jit
def _request_of(node, node_starts, num_requests, REQUESTS: tl.constexpr):
    # The request whose tree has the node: as many before it end at the node or earlier. num_requests for padding.
    row = 0
    for start in range(0, num_requests, REQUESTS):
        requests = start + tl.arange(0, REQUESTS)
        ends = tl.load(node_starts + 1 + requests, mask=requests < num_requests, other=_LAST)
        row += tl.sum((ends <= node).to(tl.int32), axis=0)
    return row


@triton.jit
def _depth_of(node, first, parents):
    # Distance from the root, of the node of the batch whose tree begins at node `first`.
    depth = 0
    parent = tl.load(parents + node)
    while parent >= 0:
        depth += 1
        parent = tl.load(parents + first + parent)
    return depth


@triton.jit
def _best(logits, noises, ids, divisor, NOISE: tl.constexpr):
    # Logit, noise and id of the best of some tokens, all of them different.
    if NOISE:
        scores = (logits - tl.max(logits, axis=0)) / divisor + noises
    else:
        scores = logits
    best_id = tl.min(tl.where(scores == tl.max(scores, axis=0), ids, _LAST), axis=0)
    best_logit = tl.max(tl.where(ids == best_id, logits, float("-inf")), axis=0)
    best_noise = 0.0
    if NOISE:
        best_noise = tl.sum(tl.where(ids == best_id, noises, 0.0), axis=0)
    return best_logit, best_noise, best_id


@triton.jit(
    do_not_specialize=list(BEST_SIZES),
    do_not_specialize_on_alignment=["parents", "node_starts", "vocab_limits", *KEYS, *CUTS, *BEST],
)
def best_tokens_kernel(
    logits,  # [M, vocab]
    parents,  # [M]
    node_starts,  # [R + 1]
    vocab_limits,  # [R]
    seeds,  # [R]
    completions,  # [R]
    indices,  # [R]
    temperatures,  # [R]
    cut_logits,  # [M]
    cut_ids,  # [M]
    best_logits,  # [M, splits]
    best_noises,
    best_ids,
    num_requests,
    row_units,
    vocab_units,
    split_chunks,
    has_cuts,
    NOISE: tl.constexpr,
    UNIT: tl.constexpr,
    CHUNK: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    # The best token of a node in one part of the vocabulary, by (logit - peak) / temperature + noise; the lowest id among equals.
    # The peak is known at the end only, so each lane keeps its best token by the difference of two scores.
    node = tl.program_id(0)
    row = _request_of(node, node_starts, num_requests, REQUESTS)
    if row >= num_requests:
        return
    limit = tl.load(vocab_limits + row)
    divisor = 1.0
    if NOISE:
        temperature = tl.load(temperatures + row)
        divisor = tl.where(temperature > 0, temperature, 1.0)
        seed = tl.load(seeds + row)
        completion = tl.load(completions + row)
        index = tl.load(indices + row) + _depth_of(node, tl.load(node_starts + row), parents)
        cut = tl.load(cut_logits + node, mask=has_cuts != 0, other=float("-inf"))
        cut_id = tl.load(cut_ids + node, mask=has_cuts != 0, other=_LAST)
    vocab = vocab_units * UNIT
    row_logits = logits + node.to(tl.int64) * row_units * UNIT
    lanes = tl.arange(0, CHUNK)
    first = tl.program_id(1) * split_chunks * CHUNK
    best_logit = tl.full([CHUNK], float("-inf"), tl.float32)
    best_noise = tl.zeros([CHUNK], tl.float64)
    if NOISE:
        best_logit = tl.full([CHUNK], -_INFINITE, tl.float64)
    best_id = first + lanes
    for start in range(first, tl.minimum(first + split_chunks * CHUNK, vocab), CHUNK):
        ids = start + lanes
        logit = tl.load(row_logits + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        # A NaN wins like infinity, so that it is found, unless it is no token's.
        logit = tl.where(ids < limit, tl.where(logit == logit, logit, float("inf")), float("-inf"))
        if NOISE:
            logit = tl.where((logit > cut) | ((logit == cut) & (ids <= cut_id)), logit, float("-inf"))
            logit = tl.minimum(tl.maximum(logit.to(tl.float64), -_INFINITE), _INFINITE)
            noise = tl.zeros([CHUNK], tl.float64)
            if temperature > 0:
                noise = to_gumbel(adjacent_words(start // 4, index, _GUMBEL_STREAM, seed, completion, CHUNK))
            is_better = (logit - best_logit) / divisor + noise > best_noise
            best_noise = tl.where(is_better, noise, best_noise)
        else:
            is_better = logit > best_logit
        best_logit = tl.where(is_better, logit, best_logit)
        best_id = tl.where(is_better, ids, best_id)
    winner, winner_noise, winner_id = _best(best_logit, best_noise, best_id, divisor, NOISE)
    place = node * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_logits + place, winner.to(tl.float64))
    tl.store(best_ids + place, winner_id)
    if NOISE:
        tl.store(best_noises + place, winner_noise)


@triton.jit
def _first_child(parents, tokens, first, end, node, token, NODES: tl.constexpr):
    # The first child of a node with the token, as a number in its tree, whose nodes are first … end - 1; _LAST if it has none.
    child = _LAST
    start = first + node + 1
    while (start < end) & (child == _LAST):
        places = start + tl.arange(0, NODES)
        is_node = places < end
        is_child = tl.load(parents + places, mask=is_node, other=-1) == node
        is_child &= tl.load(tokens + places, mask=is_node, other=-1) == token
        child = tl.min(tl.where(is_child, places - first, _LAST), axis=0)
        start += NODES
    return child


@triton.jit(do_not_specialize=list(WALK_SIZES), do_not_specialize_on_alignment=[*TREES, "temperatures", *BEST, *RESULTS])
def walk_kernel(
    tokens,  # [M]
    parents,  # [M]
    node_starts,  # [R + 1]
    temperatures,  # [R]
    best_logits,  # [M, num_splits]
    best_noises,
    best_ids,
    paths,  # [R, max_depth]
    lengths,  # [R]
    bonus,  # [R]
    num_splits,
    max_depth,
    NOISE: tl.constexpr,
    SPLITS: tl.constexpr,
    NODES: tl.constexpr,
    DEPTHS: tl.constexpr,
):
    row = tl.program_id(0)
    first = tl.load(node_starts + row)
    end = tl.load(node_starts + row + 1)
    divisor = 1.0
    if NOISE:
        temperature = tl.load(temperatures + row)
        divisor = tl.where(temperature > 0, temperature, 1.0)
    splits = tl.arange(0, SPLITS)
    is_split = splits < num_splits
    node = 0
    length = 0
    token = -1
    is_walking = first < end
    while is_walking:
        tl.store(paths + row * max_depth + length, node)
        length += 1
        place = (first + node) * num_splits + splits
        logits = tl.load(best_logits + place, mask=is_split, other=float("-inf"))
        ids = tl.load(best_ids + place, mask=is_split, other=_LAST)
        noises = logits
        if NOISE:
            logits = tl.maximum(logits, -_INFINITE)
            noises = tl.load(best_noises + place, mask=is_split, other=0.0)
        peak = tl.max(logits, axis=0)
        _, _, token = _best(logits, noises, ids, divisor, NOISE)
        is_finite = (peak > -_INFINITE) & (peak < _INFINITE)
        token = tl.where(is_finite, token, -1)
        node = _first_child(parents, tokens, first, end, node, token, NODES)
        # A path that has no more room ends with the token of its next node.
        is_walking = is_finite & (node < _LAST) & (length < max_depth)
    tl.store(lengths + row, length)
    tl.store(bonus + row, token)
    for start in range(length // DEPTHS * DEPTHS, max_depth, DEPTHS):
        depths = start + tl.arange(0, DEPTHS)
        tl.store(paths + row * max_depth + depths, -1, mask=(depths >= length) & (depths < max_depth))
