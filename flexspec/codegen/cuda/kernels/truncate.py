"""What top_k, top_p and min_p keep at each node, found without sorting the vocabulary."""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

_ALIGNMENT = 16
_WIDE_BLOCK = 2048
"""Logits of the whole vocabulary that a program looks at together."""
_BLOCK = 512
"""Gathered ones, each of them for every bin."""
_NUM_WARPS = 8
_SPREAD = tl.constexpr(10.0)
"""How far below the largest logit, in units of the temperature, tokens are first looked for."""
_SMALL = ("temperatures", "vocab_limits", "top_ks", "top_ps", "min_ps", "cut_logits", "cut_ids", "values", "ids")
"""Arguments of which few numbers are read or written: nothing is gained by knowing how they are aligned."""

_LAST = tl.constexpr(2**31 - 1)
"""No id is as large."""
_LOWEST = tl.constexpr(-(2**31))
"""No logit's key is as small."""
_LARGEST = tl.constexpr(3.4028234663852886e38)
"""No finite float32 is larger."""
_DIGIT_BITS = tl.constexpr(4)
_DIGITS = tl.constexpr(8)
_BINS = tl.constexpr(16)


class Cuts(NamedTuple):
    """What is kept of each node: the tokens with a larger logit, and of those with an equal one the ids up to one.

    Attributes:
        logits: [M] float32; minus infinity where nothing is cut, as where the largest logit is not finite.
        ids: [M] int32.
    """

    logits: Tensor
    ids: Tensor


def truncate(logits: Tensor, *, temperatures: Tensor, vocab_limits: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor) -> Cuts:
    """Find what top_k, then top_p of that, then min_p of that keep, as `flexspec.runtime.sampling` does.

    All of them keep a prefix of the order by logit, the lowest id first among equals, so that its last token says it all.
    Shares are of exp((logit - largest) / temperature) in float64; top_p counts those that top_k kept. A node's result is a
    function of its own row alone: a program has a row, and sums in the same order whatever else is launched. The likely
    tokens are gathered first, all if these are too few; among them the edge is looked for by four bits at a time of the
    logits' floating-point format, whose order is that of the numbers.

    Args:
        logits: [M, V] float32, contiguous.
        temperatures: [M] float64; nothing is cut at 0.
        vocab_limits: [M] int32; token ids from here on count as absent.
        top_ks: [M] int32, 0 for no limit.
        top_ps: [M] float64 in (0, 1].
        min_ps: [M] float64 in [0, 1].

    Raises:
        UncoveredCase: for other logits.
    """
    nodes, vocab = logits.shape
    if logits.dtype != torch.float32 or not logits.is_contiguous() or logits.data_ptr() % _ALIGNMENT:
        raise UncoveredCase(
            f"truncate of {logits.dtype} logits of strides {logits.stride()} at {logits.data_ptr():#x}: it takes torch.float32, "
            f"contiguous, at multiples of {_ALIGNMENT}"
        )
    cuts = Cuts(torch.empty(nodes, dtype=torch.float32, device=logits.device), torch.empty(nodes, dtype=torch.int32, device=logits.device))
    values, ids = torch.empty((2, nodes, vocab), dtype=torch.int32, device=logits.device)
    truncate_kernel[(nodes,)](
        *(logits, temperatures, vocab_limits, top_ks, top_ps, min_ps, *cuts, values.view(torch.float32), ids, vocab),
        WIDE_BLOCK=_WIDE_BLOCK,
        BLOCK=_BLOCK,
        **launch_options(_NUM_WARPS),
    )
    return cuts


def truncate_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `truncate` launches."""
    return [
        KernelVariant(
            kernel="truncate",
            case="float32" + ", odd vocabulary" * (not is_aligned),
            function=truncate_kernel,
            signature={
                "logits": triton_type(torch.float32),
                "temperatures": "*fp64",
                "vocab_limits": "*i32",
                "top_ks": "*i32",
                "top_ps": "*fp64",
                "min_ps": "*fp64",
                "cut_logits": "*fp32",
                "cut_ids": "*i32",
                "values": "*fp32",
                "ids": "*i32",
                "vocab": "i32",
                "WIDE_BLOCK": "constexpr",
                "BLOCK": "constexpr",
            },
            constants={"WIDE_BLOCK": _WIDE_BLOCK, "BLOCK": _BLOCK},
            divisible=frozenset({"logits", *(["vocab"] if is_aligned else [])}),
            num_warps=_NUM_WARPS,
        )
        for is_aligned in (True, False)
    ]


@triton.jit(do_not_specialize_on_alignment=list(_SMALL))
def truncate_kernel(
    logits,  # [M, vocab]
    temperatures,  # [M]
    vocab_limits,  # [M]
    top_ks,  # [M]
    top_ps,  # [M]
    min_ps,  # [M]
    cut_logits,  # [M]
    cut_ids,  # [M]
    values,  # [M, vocab] room for the logits that are looked at, and their tokens
    ids,  # [M, vocab]
    vocab,
    WIDE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    node = tl.program_id(0)
    row = node.to(tl.int64) * vocab
    logits += row
    values += row
    ids += row
    temperature = tl.load(temperatures + node)
    limit = tl.minimum(tl.load(vocab_limits + node), vocab)
    top_k, top_p, min_p = tl.load(top_ks + node), tl.load(top_ps + node), tl.load(min_ps + node)
    has_k = (top_k > 0) & (top_k < limit)
    cut_key = tl.full([], _LOWEST, tl.int32)
    cut_id = tl.full([], _LAST, tl.int32)
    if (has_k | (top_p < 1) | (min_p > 0)) & (temperature > 0):
        peak = peak_of(logits, vocab, limit, WIDE_BLOCK)
        if (peak > -float("inf")) & (peak < float("inf")):
            if has_k | (top_p < 1):
                cut_key, cut_id = _cut(logits, values, ids, vocab, limit, peak, temperature, has_k, top_k, top_p, WIDE_BLOCK, BLOCK)
            if min_p > 0:
                floor = _floor(peak, temperature, min_p)
                cut_id = tl.where(floor > cut_key, _LAST, cut_id)
                cut_key = tl.maximum(floor, cut_key)
    tl.store(cut_logits + node, tl.where(cut_key == _LOWEST, -float("inf"), _value(cut_key)))
    tl.store(cut_ids + node, cut_id)


@triton.jit
def _cut(logits, values, ids, vocab, limit, peak, temperature, has_k, top_k, top_p, WIDE_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    """Key and id of the last token that top_k and then top_p keep."""
    bound = tl.maximum(peak - _SPREAD * temperature, -_LARGEST).to(tl.float32)
    count, near, total = _gather(logits, values, ids, vocab, limit, bound, peak, temperature, has_k == 0, WIDE_BLOCK)
    # A little more, since sums in another order are a little different.
    if tl.where(has_k, count < top_k, near < top_p * total * (1 + 1e-9)):
        tl.debug_barrier()
        count, near, total = _gather(logits, values, ids, vocab, limit, -_LARGEST, peak, temperature, has_k == 0, WIDE_BLOCK)
    tl.debug_barrier()
    cut_key = tl.full([], _LOWEST, tl.int32)
    last = tl.full([], _LAST, tl.int32)
    if has_k:
        cut_key, above, needed = _edge(
            values, count, peak, temperature, cut_key, last, top_k.to(tl.float64), total, BY_SHARE=False, BLOCK=BLOCK
        )
        last = _nth(values, count, cut_key, (needed - above).to(tl.int32), BLOCK)
    if top_p < 1:
        edge, above, needed = _edge(values, count, peak, temperature, cut_key, last, top_p, total, BY_SHARE=True, BLOCK=BLOCK)
        ties = (needed - above) / tl.exp((_value(edge).to(tl.float64) - peak) / temperature)
        whole = tl.minimum(ties, _LAST - 1.0).to(tl.int32)
        place = _nth(values, count, edge, tl.maximum(whole + (whole < ties).to(tl.int32), 1), BLOCK)
        # Of the last tokens that top_k kept, rounding may ask for one more.
        last = tl.where(edge == cut_key, tl.minimum(last, place), place)
        cut_key = edge
    return cut_key, tl.load(ids + last, mask=last < count, other=_LAST)


@triton.jit
def peak_of(logits, vocab, limit, BLOCK: tl.constexpr):
    """The largest logit of a row as far as tokens count, in float32; infinity if there is a NaN."""
    peaks = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        # Only the row's end may cut a vector of numbers that is loaded at once.
        values = tl.load(logits + ids, mask=ids < vocab, other=-float("inf"))
        values = tl.where(values == values, values, float("inf"))
        peaks = tl.maximum(peaks, tl.where(ids < limit, values, -float("inf")))
    return tl.max(peaks, axis=0)


@triton.jit
def _key(values):
    """Integers in the order of the values, equal where these are, zeros of either sign included."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The float32 with that key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _gather(logits, values, ids, vocab, limit, bound, peak, temperature, with_mass, BLOCK: tl.constexpr):
    """Copies the tokens with a logit of at least `bound`, in order; how many these are, their mass, and that of all."""
    count = tl.full([], 0, tl.int32)
    near = tl.zeros([BLOCK], tl.float64)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + columns, mask=columns < vocab, other=-float("inf"))
        logit = tl.where(columns < limit, logit, -float("inf"))
        is_near = logit >= bound
        places = count + tl.cumsum(is_near.to(tl.int32), 0) - 1
        tl.store(values + places, logit, mask=is_near)
        tl.store(ids + places, columns, mask=is_near)
        count += tl.sum(is_near.to(tl.int32), axis=0)
        if with_mass:
            weights = tl.exp((logit.to(tl.float64) - peak) / temperature)
            near += tl.where(is_near, weights, 0.0)
            total += weights
    return count, tl.sum(near, axis=0), tl.sum(total, axis=0)


@triton.jit
def _edge(
    values,
    count,
    peak,
    temperature,
    cut_key,
    last,
    wanted,
    total,
    BY_SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest key so that what is not below it weighs enough, the weight above it, and how much is enough.

    A token weighs 1, and `wanted` tokens are enough, or all there are. BY_SHARE it weighs exp(score), and enough is that
    part of `total`; if this is 0, of what is kept up to the place `last` at the cut's key.
    """
    bins = tl.arange(0, _BINS)
    edge = tl.full([], _LOWEST, tl.int32)
    above = tl.full([], 0.0, tl.float64)
    needed = tl.full([], 0.0, tl.float64)
    step = tl.full([], 1 << 28, tl.int32)
    for digit in range(_DIGITS):
        keys_from = edge + bins * step
        sums = tl.zeros([BLOCK, _BINS], tl.float64)
        for start in range(0, count, BLOCK):
            places = start + tl.arange(0, BLOCK)
            value = tl.load(values + places, mask=places < count, other=-float("inf"))
            keys = _key(value)
            is_kept = ((keys > cut_key) | ((keys == cut_key) & (places <= last))) & (places < count)
            if BY_SHARE:
                weights = tl.where(is_kept, tl.exp((value.to(tl.float64) - peak) / temperature), 0.0)
            else:
                weights = is_kept.to(tl.float64)
            sums += tl.where(keys[:, None] >= keys_from[None, :], weights[:, None], 0.0)
        weight = tl.sum(sums, axis=0)  # falls from bin to bin
        if digit == 0:
            most = tl.max(weight, axis=0)
            if BY_SHARE:
                needed = tl.where(total > 0, tl.minimum(wanted * total, most), wanted * most)
            else:
                needed = tl.minimum(wanted, most)
        place = tl.sum((weight >= needed).to(tl.int32), axis=0) - 1
        above = tl.max(tl.where(bins > place, weight, above), axis=0)
        edge += place * step
        step = step >> _DIGIT_BITS
    return edge, above, needed


@triton.jit
def _nth(values, count, key, number, BLOCK: tl.constexpr):
    """The place of the `number`-th token with that key; _LAST if there are fewer."""
    found = tl.full([], _LAST, tl.int32)
    before = 0
    start = 0
    while (start < count) & (found == _LAST):
        places = start + tl.arange(0, BLOCK)
        value = tl.load(values + places, mask=places < count, other=-float("inf"))
        is_equal = (_key(value) == key) & (places < count)
        ranks = before + tl.cumsum(is_equal.to(tl.int32), 0)
        found = tl.min(tl.where(is_equal & (ranks == number), places, _LAST), axis=0)
        before += tl.sum(is_equal.to(tl.int32), axis=0)
        start += BLOCK
    return found


@triton.jit
def _floor(peak, temperature, min_p):
    """The key of the smallest float32 with at least `min_p` times the share of the peak."""
    low = tl.full([], _LOWEST, tl.int64)
    high = _key(peak).to(tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        # A pattern that is no number is below all that are, and not enough.
        is_enough = tl.exp((_value(middle.to(tl.int32)).to(tl.float64) - peak) / temperature) >= min_p
        high = tl.where(is_enough, middle, high)
        low = tl.where(is_enough, low, middle)
    return high.to(tl.int32)


def truncate_reference(
    logits: Tensor, *, temperatures: Tensor, vocab_limits: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor
) -> Cuts:
    """As `truncate`, by sorting each row."""
    cuts = Cuts(torch.full((len(logits),), -torch.inf), torch.full((len(logits),), 2**31 - 1, dtype=torch.int32))
    rules = zip(temperatures.tolist(), vocab_limits.tolist(), top_ks.tolist(), top_ps.tolist(), min_ps.tolist(), strict=True)
    for node, (temperature, limit, top_k, top_p, min_p) in enumerate(rules):
        values = logits[node, :limit].numpy()
        top_k = top_k if top_k < len(values) else 0
        if not temperature or (not top_k and top_p == 1 and min_p == 0) or not np.isfinite(values.max()):
            continue
        order = np.argsort(-values, kind="stable")
        with np.errstate(over="ignore"):
            weights = np.exp((values.astype(np.float64) - values[order[0]]) / temperature)
        if top_k:
            order = order[: min(top_k, int(np.isfinite(values).sum()))]
        if top_p < 1:
            mass = np.cumsum(weights[order])
            total = mass[-1] if top_k else weights.sum()
            order = order[: int(np.searchsorted(mass, top_p * total)) + 1]
        order = order[weights[order] >= min_p]
        cuts.logits[node], cuts.ids[node] = float(values[order[-1]]), int(order[-1])
    return cuts
