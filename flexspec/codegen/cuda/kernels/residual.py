"""The stochastic verifiers' work at a node: its chain of trials over the whole vocabulary, and the token that follows it."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

_DTYPES = (torch.float32, torch.float64)
_MAX_BLOCKS = 256
_ALIGNMENT = 16
_SMALL = ("tokens", "q_rows", "uniforms", "owed", "terms", "accepted", "owed_left", "bonus")
"""Arguments of which single numbers are read or written: nothing is gained by knowing how they are aligned."""


class Trials(NamedTuple):
    """What a node's chain of trials came to.

    Attributes:
        acceptances: [nodes, K] float64, min(1, owed * p / q) of every trial that was made, 0 of the others.
        masses: [nodes, K] float64, what a failed trial left of the distribution before it was normalised: the sum of
            max(0, owed * p - q); 0 where rounding leaves nothing, and of trials that were not made or did not fail.
        accepted: [nodes] int32, the trial that succeeded; -1 if none did.
        owed: [nodes] float64, what the node owes after its last failed trial.
        bonus: [nodes] int32, the token drawn from what the trials left; -1 if one succeeded, where nothing is owed, and where
            the distribution holds numbers that are not finite.
    """

    acceptances: torch.Tensor
    masses: torch.Tensor
    accepted: torch.Tensor
    owed: torch.Tensor
    bonus: torch.Tensor


def residual(
    p: torch.Tensor,
    q: torch.Tensor,
    tokens: torch.Tensor,
    q_rows: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    owed: torch.Tensor | None = None,
    is_decided: bool = True,
    is_distinct: bool = False,
) -> Trials:
    """Try the drafted children of every node in drawing order, each against what the failed ones left of p.

    A trial of token x, drawn from q, succeeds with probability a = min(1, owed * p(x) / q(x)). A failed one leaves
    max(0, owed * p - q), of mass R, normalised, and R / (R + 1 - owed) of the debt. With a debt of 1 this is multi-step
    speculative sampling (SpecInfer, section 4.3), whose debt stays 1. Traversal verification goes through all trials as if
    they failed, one level of the tree after the other: what a child owes is the acceptance of its trial.

    Probabilities and not logits, since they are the request's own, after truncation and penalties, and making them from logits
    is a softmax that a general compiler fuses; arithmetic is float64 whatever their type. A row is read once for each trial
    that fails, whatever failed before being computed again on the way: nothing of a vocabulary's size is written.

    Args:
        p: [nodes, V] float32 or float64, contiguous: what the LLM's token at each node is distributed like.
        q: [rows, V] of the same type, contiguous: what children were drawn from.
        tokens: [nodes, K] int32, the token of each trial; -1 ends a node's trials.
        q_rows: [nodes, K] int32, the row of `q` that the token was drawn from, in which it has a probability; -1 for a token that
            was chosen, a point mass.
        uniforms: [nodes, K + 1] float64 in [0, 1): trial i succeeds if number i is less than its acceptance; after i failed
            trials the bonus token is the first whose cumulated probability exceeds number i.
        owed: [nodes] float64 in 0 … 1, 1 by default; nodes that owe 0, such as padding, cost nothing.
        is_decided: whether trials succeed by `uniforms`; otherwise only where they can't fail.
        is_distinct: whether a trial's q is the row without the tokens of the node's earlier trials of the same row,
            renormalised: children drawn without replacement (Chen et al., "Sequoia", 2024).

    Raises:
        UncoveredCase: for other types, unaligned or strided rows, or a vocabulary that is too large.
    """
    _check(p, q)
    nodes, width = tokens.shape
    block, num_warps = _sizes(p.dtype, p.shape[1] % _ALIGNMENT == 0)
    terms = torch.empty((nodes, width, 4), dtype=torch.float64, device=p.device)
    owed = torch.ones(nodes, dtype=torch.float64, device=p.device) if owed is None else owed
    accepted, bonus = torch.empty((2, nodes), dtype=torch.int32, device=p.device)
    owed_left = torch.empty_like(owed)
    if nodes:
        _residual[(nodes,)](
            *(p, q, tokens, q_rows, uniforms, owed, terms, accepted, owed_left, bonus),
            *(p.shape[1], width, int(is_decided)),
            IS_DISTINCT=is_distinct,
            BLOCK=block,
            MAX_BLOCKS=_MAX_BLOCKS,
            num_warps=num_warps,
        )
    return Trials(terms[..., 0], terms[..., 1], accepted, owed_left, bonus)


def _check(p: torch.Tensor, q: torch.Tensor) -> None:
    if p.dtype not in _DTYPES or q.dtype != p.dtype:
        raise UncoveredCase(f"residual of p in {p.dtype} and q in {q.dtype}: both have to be torch.float32, or torch.float64")
    most = _sizes(p.dtype, p.shape[1] % _ALIGNMENT == 0)[0] * _MAX_BLOCKS
    if p.shape[1] > most:
        raise UncoveredCase(f"residual over a vocabulary of {p.shape[1]}: {most} is the most")
    for name, rows in (("p", p), ("q", q)):
        if not rows.is_contiguous() or rows.shape[1] != p.shape[1] or rows.data_ptr() % _ALIGNMENT:
            raise UncoveredCase(
                f"residual of {name} of shape {tuple(rows.shape)}, strides {rows.stride()} at address {rows.data_ptr()}: rows have to be "
                f"contiguous, as long as p's, and to begin at a multiple of {_ALIGNMENT} bytes"
            )


def _sizes(dtype: torch.dtype, is_aligned: bool) -> tuple[int, int]:
    """Tokens and warps of a block: what fits in registers, single loads needing more of them."""
    return (4096, 16) if dtype is torch.float32 and is_aligned else (2048, 8)


def residual_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `residual` launches."""
    return [
        KernelVariant(
            kernel="residual",
            case=f"{str(dtype).removeprefix('torch.')}{', distinct' * is_distinct}{', odd vocabulary' * (not is_aligned)}",
            function=_residual,
            signature={
                **{name: triton_type(dtype) for name in ("p", "q")},
                **{name: triton_type(torch.int32) for name in ("tokens", "q_rows")},
                **{name: triton_type(torch.float64) for name in ("uniforms", "owed", "terms")},
                "accepted": "*i32",
                "owed_left": "*fp64",
                "bonus": "*i32",
                **{name: "i32" for name in ("vocab", "num_trials", "is_decided")},
                **{name: "constexpr" for name in ("IS_DISTINCT", "BLOCK", "MAX_BLOCKS")},
            },
            constants={"IS_DISTINCT": is_distinct, "BLOCK": _sizes(dtype, is_aligned)[0], "MAX_BLOCKS": _MAX_BLOCKS},
            divisible=frozenset({"p", "q", *(["vocab"] if is_aligned else [])}),
            num_warps=_sizes(dtype, is_aligned)[1],
        )
        for dtype in _DTYPES
        for is_distinct in (False, True)
        for is_aligned in (True, False)
    ]


@triton.jit(do_not_specialize=["num_trials", "is_decided"], do_not_specialize_on_alignment=list(_SMALL))
def _residual(
    p,  # [nodes, vocab]
    q,  # [rows, vocab]
    tokens,  # [nodes, num_trials]
    q_rows,  # [nodes, num_trials]
    uniforms,  # [nodes, num_trials + 1]
    owed,  # [nodes]
    terms,  # [nodes, num_trials, 4]: acceptance, mass, and the factors of p and q with which the trial counts in `_left`
    accepted,  # [nodes]
    owed_left,  # [nodes]
    bonus,  # [nodes]
    vocab,
    num_trials,
    is_decided,
    IS_DISTINCT: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
):
    node = tl.program_id(0).to(tl.int64)
    p += node * vocab
    tokens += node * num_trials
    q_rows += node * num_trials
    uniforms += node * (num_trials + 1)
    terms += node * num_trials * 4
    debt = tl.load(owed + node)
    mass = tl.full([], 1.0, tl.float64)  # of what the failed trials left
    kept = tl.full([], 1.0, tl.float64)  # of the next trial's row of q, after the tokens drawn before it
    ends = tl.zeros([MAX_BLOCKS], tl.float64)
    has_ends = False
    count = 0  # failed trials
    chosen = -1
    most = tl.where(debt > 0, num_trials, 0)
    while count < most:
        token = tl.load(tokens + count)
        if token < 0:
            most = count
        else:
            row = tl.load(q_rows + count).to(tl.int64)
            drawn = tl.load(q + row * vocab + token, mask=row >= 0, other=1.0).to(tl.float64) / kept
            ratio = debt * (_left(p, q, tokens, q_rows, terms, count, vocab, token) / mass) / drawn
            acceptance = tl.where(ratio >= 1, 1.0, ratio)  # a NaN stays one, and fails
            tl.store(terms + count * 4, acceptance)
            succeeds = (tl.load(uniforms + count) < acceptance) & (is_decided != 0)
            if succeeds | (acceptance >= 1):
                chosen = count
                most = count
                tl.store(terms + count * 4 + 1, 0.0)
            else:
                tl.store(terms + count * 4 + 2, debt / mass)
                tl.store(terms + count * 4 + 3, 1.0 / kept)
                tl.debug_barrier()
                rest, kept, new_ends = _sums(
                    p, q, tokens, q_rows, terms, count + 1, num_trials, vocab, IS_DISTINCT=IS_DISTINCT, BLOCK=BLOCK, MAX_BLOCKS=MAX_BLOCKS
                )
                tl.store(terms + count * 4 + 1, rest)
                failing = rest + (1.0 - debt)
                # Where rounding says that the trial could not fail, the whole debt is left.
                debt = tl.where(failing == 0, 1.0, rest / tl.where(failing == 0, 1.0, failing))
                if rest == 0:
                    # What rounding empties stays as it was.
                    tl.store(terms + count * 4 + 2, 1.0)
                    tl.store(terms + count * 4 + 3, 0.0)
                    tl.debug_barrier()
                else:
                    mass = rest
                    ends = new_ends
                    has_ends = True
                count += 1
    for trial in range(tl.where(chosen >= 0, count + 1, count), num_trials):
        tl.store(terms + trial * 4, 0.0)
        tl.store(terms + trial * 4 + 1, 0.0)
    following = -1
    if (chosen < 0) & (debt > 0):
        if not has_ends:
            mass, kept, ends = _sums(
                p, q, tokens, q_rows, terms, count, count, vocab, IS_DISTINCT=False, BLOCK=BLOCK, MAX_BLOCKS=MAX_BLOCKS
            )
        target = tl.load(uniforms + count) * mass
        block = tl.minimum(tl.sum((ends <= target).to(tl.int32)), tl.cdiv(vocab, BLOCK) - 1)
        before = tl.max(tl.where(ends <= target, ends, 0.0))
        columns = block * BLOCK + tl.arange(0, BLOCK)
        left = _left(p, q, tokens, q_rows, terms, count, vocab, columns)
        # Sums of a scan need not grow: a token without probability is never taken, and the last with some ends the search.
        reached = (before + tl.cumsum(left, 0) > target) & (left > 0)
        first = tl.min(tl.where(reached, columns, vocab))
        last = tl.max(tl.where(left > 0, columns, -1))
        following = tl.where(mass > 0, tl.where(first < vocab, first, last), -1)
    tl.store(accepted + node, chosen)
    tl.store(owed_left + node, debt)
    tl.store(bonus + node, following)


@triton.jit
def _left(p, q, tokens, q_rows, terms, count, vocab, columns):
    """At one column or a block of them, what the first `count` trials left of p, not normalised."""
    left = tl.load(p + columns, mask=columns < vocab, other=0.0).to(tl.float64)
    for trial in range(count):
        token = tl.load(tokens + trial)
        row = tl.load(q_rows + trial).to(tl.int64)
        drawn = tl.load(q + row * vocab + columns, mask=columns < tl.where(row >= 0, vocab, 0), other=0.0).to(tl.float64)
        drawn += (columns == tl.where(row < 0, token, -1)).to(tl.float64)
        rest = tl.load(terms + trial * 4 + 2) * left - tl.load(terms + trial * 4 + 3) * drawn
        left = tl.where(rest <= 0, 0.0, rest)  # and not a maximum, which would drop a NaN
    return left


@triton.jit
def _sums(p, q, tokens, q_rows, terms, count, num_trials, vocab, IS_DISTINCT: tl.constexpr, BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr):
    """In one pass: the mass of what `count` trials left, that of what is left of the next trial's q, and [MAX_BLOCKS] the first one up
    to the end of each block."""
    places = tl.arange(0, MAX_BLOCKS)
    mass = tl.full([], 0.0, tl.float64)
    ends = tl.zeros([MAX_BLOCKS], tl.float64)
    kept = tl.full([], 0.0, tl.float64)
    next_row = tl.full([], -1, tl.int64)
    is_drawn_before = False
    if IS_DISTINCT:
        next_row = tl.load(q_rows + count, mask=count < num_trials, other=-1).to(tl.int64)
        for trial in range(count):
            is_drawn_before = is_drawn_before | (tl.load(q_rows + trial) == next_row)
        is_drawn_before = is_drawn_before & (next_row >= 0)
    for block in range(tl.cdiv(vocab, BLOCK)):
        columns = block * BLOCK + tl.arange(0, BLOCK)
        mass += tl.sum(_left(p, q, tokens, q_rows, terms, count, vocab, columns))
        ends = tl.where(places >= block, mass, ends)
        if IS_DISTINCT:
            drawn = tl.load(q + next_row * vocab + columns, mask=columns < tl.where(is_drawn_before, vocab, 0), other=0.0).to(tl.float64)
            for trial in range(count):
                gone = tl.where(tl.load(q_rows + trial) == next_row, tl.load(tokens + trial), -1)
                drawn = tl.where(columns == gone, 0.0, drawn)
            kept += tl.sum(drawn)
    return mass, tl.where(is_drawn_before, kept, 1.0), ends


def residual_reference(
    p: torch.Tensor,
    q: torch.Tensor,
    tokens: torch.Tensor,
    q_rows: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    owed: torch.Tensor | None = None,
    is_decided: bool = True,
    is_distinct: bool = False,
) -> Trials:
    """`residual` in plain PyTorch."""
    nodes, width = tokens.shape
    left, own = p.double(), torch.arange(nodes, device=p.device)
    debt = torch.ones(nodes, dtype=torch.float64, device=p.device) if owed is None else owed.clone()
    acceptances, masses = torch.zeros((2, nodes, width), dtype=torch.float64, device=p.device)
    accepted = torch.full((nodes,), -1, device=p.device)
    failed = torch.zeros(nodes, dtype=torch.long, device=p.device)
    running = debt > 0
    for trial in range(width):
        token, row = tokens[:, trial].long(), q_rows[:, trial].long()
        running = running & (token >= 0)
        token = token.clamp(min=0)
        drawn = torch.nn.functional.one_hot(token, p.shape[1]).double()
        if len(q):
            drawn = torch.where((row >= 0)[:, None], q.double()[row.clamp(min=0)], drawn)
        if is_distinct:
            is_again = torch.zeros_like(running)
            for earlier in range(trial):
                is_same = (q_rows[:, earlier] == row) & (row >= 0)
                drawn = drawn.index_put((own[is_same], tokens[is_same, earlier].long()), drawn.new_zeros(()))
                is_again = is_again | is_same
            drawn = torch.where(is_again[:, None], drawn / drawn.sum(1, keepdim=True), drawn)
        ratio = debt * left[own, token] / drawn[own, token]
        acceptance = torch.where(ratio >= 1, 1.0, ratio)
        succeeds = running & ((uniforms[:, trial] < acceptance) & is_decided | (acceptance >= 1))
        acceptances[:, trial] = torch.where(running, acceptance, 0.0)
        accepted = torch.where(succeeds, trial, accepted)
        running = running & ~succeeds
        rest = debt[:, None] * left - drawn
        rest = torch.where(rest <= 0, 0.0, rest)
        mass = rest.sum(1)
        masses[:, trial] = torch.where(running, mass, 0.0)
        failing = mass + (1.0 - debt)
        debt = torch.where(running, torch.where(failing == 0, 1.0, mass / failing), debt)
        left = torch.where((running & (mass != 0))[:, None], rest / mass[:, None], left)
        failed += running
    cumulated = left.cumsum(1)
    reached = (cumulated > uniforms[own, failed, None] * cumulated[:, -1:]) & (left > 0)
    last = p.shape[1] - 1 - (left > 0).flip(1).long().argmax(1)
    bonus = torch.where(reached.any(1), reached.long().argmax(1), last)
    has_bonus = (accepted < 0) & (debt > 0) & (cumulated[:, -1] > 0)
    return Trials(acceptances, masses, accepted.int(), debt, torch.where(has_bonus, bonus, -1).int())
