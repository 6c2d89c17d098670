"""The next level of the trees that a draft model grows, formed on the device: the host sets only how large it may be."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flexspec.codegen.cuda.kernels.draft_top import TopTokens
from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options
from flexspec.codegen.cuda.targets import GpuTarget

_SIZES = {16: 1, 128: 4, 1024: 8}
"""Children of a request that are compared, and warps for it."""
MOST_COMPARED = max(_SIZES)
_CHUNK = 16
_INTEGERS = ("in_width", "out_width", "k", "depth", "level", "words")


class Level(NamedTuple):
    """One level of the trees of R requests, as a pass over it has it: request r's nodes are rows r * width … of N = R * width.

    Rows after a request's last node are padding: slot -1, no parent, and zeros. The tail slots of a request are taken in the order
    in which nodes come; the root lies before them, in the text. A node's number in its tree is its place in the tail plus
    one, the root's is 0.

    Attributes:
        token_ids: [N] int64.
        parents: [N] int32, the parents' numbers in the tree; -1 for padding, and for roots.
        parent_rows: [N] int32, the rows of the parents in the level before; 0 for padding and roots.
        positions: [N] int32.
        request_rows: [N] int32.
        slots: [N] int32.
        context_lens: [N] int32.
        tail_bits: [N, W] int32.
        log_probs: [N] float32, of the path from the root.
        counts: [R] int32, how many nodes there are.
        used: [R] int32, slots of the tail that this level and those before it take.
    """

    token_ids: torch.Tensor
    parents: torch.Tensor
    parent_rows: torch.Tensor
    positions: torch.Tensor
    request_rows: torch.Tensor
    slots: torch.Tensor
    context_lens: torch.Tensor
    tail_bits: torch.Tensor
    log_probs: torch.Tensor
    counts: torch.Tensor
    used: torch.Tensor


def root_level(tokens: torch.Tensor, lengths: torch.Tensor, words: int) -> Level:
    """The level of the roots, one row a request.

    Args:
        tokens: [R] int64, the last token of each text.
        lengths: [R] int32, tokens of the texts, which the tails begin behind; 0 for padding.
        words: int32 words of a bit row: a tree has at most 32 * words nodes besides its root.
    """
    is_there, zeros = lengths > 0, torch.zeros_like(lengths)
    return Level(
        token_ids=tokens * is_there,
        parents=zeros - 1,
        parent_rows=zeros,
        positions=(lengths - 1).clamp(min=0),
        request_rows=torch.arange(len(lengths), dtype=torch.int32, device=lengths.device) * is_there,
        slots=lengths - 1,
        context_lens=lengths.clone(),
        tail_bits=torch.zeros((len(lengths), words), dtype=torch.int32, device=lengths.device),
        log_probs=torch.zeros(len(lengths), dtype=torch.float32, device=lengths.device),
        counts=is_there.int(),
        used=zeros.clone(),
    )


def draft_level(before: Level, top: TopTokens, tail_starts: torch.Tensor, limits: torch.Tensor, level: int, *, width: int) -> Level:
    """Give every node of a level its best tokens as children, and keep the likeliest of them.

    Children come in the order of their parents, best first. Where more are there than the level may hold, those with the likeliest
    paths stay, of equals the first. So widths <k1, k2, …> are a static tree, if the budgets do not bind; and wide levels with a
    budget are an adaptive one. Whatever exceeds the envelope of `width` nodes or of the bit rows is left out likewise.

    Args:
        before: the level that has been fed, of N nodes.
        top: [N, k] what follows its nodes.
        tail_starts: [R] int32.
        limits: [R, depth, 2] int32: at most how many children a node of a level has, and how many of them all are kept; zeros end
            a request's tree. Read on the device, so that one captured graph serves all trees of its envelope.
        level: which of these levels is formed, from 0.
        width: most nodes of a request that the level formed has room for.

    Raises:
        UncoveredCase: if more children are to be compared than any specialisation compares.
    """
    requests, k, words = len(tail_starts), top.ids.shape[1], before.tail_bits.shape[1]
    in_width = len(before.slots) // max(requests, 1)
    assert level < limits.shape[1] and len(top.ids) == len(before.slots)
    size = _size(in_width * k)
    after = _empty_level(before, requests, width)
    if requests:
        _draft_level[(requests,)](
            *(*top, before.positions, before.slots, before.tail_bits, before.log_probs, before.counts, before.used),
            *(tail_starts, limits, *after, in_width, width, k, limits.shape[1], level, words),
            CANDIDATES=size,
            CHUNK=_CHUNK,
            **launch_options(_SIZES[size]),
        )
    return after


def _empty_level(before: Level, requests: int, width: int) -> Level:
    rows = [requests if name in ("counts", "used") else requests * width for name in Level._fields]
    return Level(*(field.new_empty((count, *field.shape[1:])) for count, field in zip(rows, before, strict=True)))


def _size(count: int) -> int:
    for size in _SIZES:
        if count <= size:
            return size
    raise UncoveredCase(f"draft_level over {count} children of a request: {MOST_COMPARED} is the most")


def draft_level_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `draft_level` launches."""
    return [
        KernelVariant(
            kernel="draft_level",
            case=f"{size} children",
            function=_draft_level,
            signature={
                **{name: "*i32" for name in _POINTERS},
                **{"top_log_probs": "*fp32", "log_probs": "*fp32", "new_log_probs": "*fp32", "token_ids": "*i64"},
                **dict.fromkeys(_INTEGERS, "i32"),
                "CANDIDATES": "constexpr",
                "CHUNK": "constexpr",
            },
            constants={"CANDIDATES": size, "CHUNK": _CHUNK},
            num_warps=num_warps,
        )
        for size, num_warps in _SIZES.items()
    ]


_POINTERS = (
    *("top_ids", "top_log_probs", "positions", "slots", "tail_bits", "log_probs", "counts", "used", "tail_starts", "limits"),
    *("token_ids", "parents", "parent_rows", "new_positions", "request_rows", "new_slots", "context_lens", "new_bits", "new_log_probs"),
    *("new_counts", "new_used"),
)


@triton.jit(do_not_specialize=list(_INTEGERS), do_not_specialize_on_alignment=list(_POINTERS))
def _draft_level(
    top_ids,  # [R * in_width, k]
    top_log_probs,  # [R * in_width, k]
    positions,  # [R * in_width], as are the others of the level before
    slots,
    tail_bits,
    log_probs,
    counts,  # [R]
    used,  # [R]
    tail_starts,  # [R]
    limits,  # [R, depth, 2]
    token_ids,  # [R * out_width], as are the others of the level formed
    parents,
    parent_rows,
    new_positions,
    request_rows,
    new_slots,
    context_lens,
    new_bits,
    new_log_probs,
    new_counts,
    new_used,
    in_width,
    out_width,
    k,
    depth,
    level,
    words,
    CANDIDATES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    request = tl.program_id(0)
    start = tl.load(tail_starts + request)
    taken = tl.load(used + request)
    limit = limits + (request * depth + level) * 2
    branch = tl.load(limit)
    budget = tl.minimum(tl.minimum(tl.load(limit + 1), out_width), 32 * words - taken)
    count = tl.load(counts + request)
    top_ids += request * in_width * k
    top_log_probs += request * in_width * k
    log_probs += request * in_width
    candidates = tl.arange(0, CANDIDATES)
    token, score = _children(candidates, top_ids, top_log_probs, log_probs, count, branch, k)
    num_better = tl.zeros([CANDIDATES], tl.int32)
    if tl.sum((token >= 0).to(tl.int32)) > budget:
        for first in range(0, count * k, CHUNK):
            others = first + tl.arange(0, CHUNK)
            other_token, other_score = _children(others, top_ids, top_log_probs, log_probs, count, branch, k)
            is_first = (other_score[None, :] == score[:, None]) & (others[None, :] < candidates[:, None])
            is_better = ((other_score[None, :] > score[:, None]) | is_first) & (other_token[None, :] >= 0)
            num_better += tl.sum(is_better.to(tl.int32), axis=1)
    is_kept = (token >= 0) & (num_better < budget)
    order = tl.maximum(tl.cumsum(is_kept.to(tl.int32), 0) - 1, 0)
    total = tl.sum(is_kept.to(tl.int32))
    row = request * in_width + candidates // k
    out = request * out_width + order
    place = taken + order
    tl.store(token_ids + out, token.to(tl.int64), mask=is_kept)
    tl.store(parents + out, tl.load(slots + row, mask=is_kept, other=0) - start + 1, mask=is_kept)
    tl.store(parent_rows + out, row, mask=is_kept)
    tl.store(new_positions + out, tl.load(positions + row, mask=is_kept, other=0) + 1, mask=is_kept)
    tl.store(request_rows + out, tl.zeros_like(out) + request, mask=is_kept)
    tl.store(new_slots + out, start + place, mask=is_kept)
    tl.store(context_lens + out, tl.zeros_like(out) + start, mask=is_kept)
    tl.store(new_log_probs + out, score, mask=is_kept)
    for word in range(words):
        bits = tl.load(tail_bits + row * words + word, mask=is_kept, other=0)
        bits |= tl.where(place // 32 == word, 1 << (place % 32), 0)
        tl.store(new_bits + out * words + word, bits, mask=is_kept)
    for first in range(0, out_width, CANDIDATES):
        rest = first + candidates
        is_padding = (rest >= total) & (rest < out_width)
        rest += request * out_width
        zeros = tl.zeros_like(rest)
        tl.store(token_ids + rest, zeros.to(tl.int64), mask=is_padding)
        tl.store(parents + rest, zeros - 1, mask=is_padding)
        tl.store(parent_rows + rest, zeros, mask=is_padding)
        tl.store(new_positions + rest, zeros, mask=is_padding)
        tl.store(request_rows + rest, zeros, mask=is_padding)
        tl.store(new_slots + rest, zeros - 1, mask=is_padding)
        tl.store(context_lens + rest, zeros, mask=is_padding)
        tl.store(new_log_probs + rest, zeros.to(tl.float32), mask=is_padding)
        for word in range(words):
            tl.store(new_bits + rest * words + word, zeros, mask=is_padding)
    tl.store(new_counts + request, total)
    tl.store(new_used + request, taken + total)


@triton.jit
def _children(candidates, top_ids, top_log_probs, log_probs, count, branch, k):
    """Token (-1 where there is none) and log probability of the path of a request's children, k places a parent."""
    parent = candidates // k
    is_open = (parent < count) & (candidates % k < branch)
    token = tl.load(top_ids + candidates, mask=is_open, other=-1)
    score = tl.load(log_probs + parent, mask=is_open, other=0.0) + tl.load(top_log_probs + candidates, mask=is_open, other=0.0)
    return token, score


def draft_level_reference(
    before: Level, top: TopTokens, tail_starts: torch.Tensor, limits: torch.Tensor, level: int, *, width: int
) -> Level:
    """`draft_level` in plain PyTorch."""
    requests, words = len(tail_starts), before.tail_bits.shape[1]
    in_width = len(before.slots) // max(requests, 1)
    after = _empty_level(before, requests, width)
    for field in after:
        field.zero_()
    after.parents.fill_(-1)
    after.slots.fill_(-1)
    for request in range(requests):
        start, taken = int(tail_starts[request]), int(before.used[request])
        branch, budget = limits[request, level].tolist()
        rows = range(request * in_width, request * in_width + int(before.counts[request]))
        children = [
            (float(before.log_probs[row] + log_prob), row, token)
            for row in rows
            for token, log_prob in zip(top.ids[row, :branch].tolist(), top.log_probs[row, :branch], strict=True)
            if token >= 0
        ]
        likeliest = sorted(range(len(children)), key=lambda child: -children[child][0])
        kept = sorted(likeliest[: max(min(budget, width, 32 * words - taken), 0)])
        for order, child in enumerate(kept):
            (score, row, token), place = children[child], taken + order
            bits = before.tail_bits[row].clone()
            bits[place // 32] |= torch.tensor(1 << place % 32).int()
            values = (token, before.slots[row] - start + 1, row, before.positions[row] + 1, request, start + place, start, bits, score)
            for field, value in zip(after[:9], values, strict=True):
                field[request * width + order] = value
        after.counts[request], after.used[request] = len(kept), taken + len(kept)
    return after
