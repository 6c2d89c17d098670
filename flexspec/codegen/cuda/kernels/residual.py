"""The stochastic verifiers' work at a node: its chain of trials over the whole vocabulary, and the token that follows it."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

ROW_UNIT = 16
"""Rows of probabilities are as many numbers long, or a multiple: their ends have none."""
_ALIGNMENT = 16
_MAX_BLOCKS = 256
_BLOCK = 2048
"""Tokens of a block: what fits in registers."""
_NUM_WARPS = 8
_SMALL = ("p_rows", "tokens", "q_rows", "uniforms", "owed", "is_decided", "terms", "accepted", "owed_left", "bonus")
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
    p_rows: torch.Tensor | None = None,
    owed: torch.Tensor | None = None,
    is_decided: torch.Tensor | None = None,
) -> Trials:
    """Try the drafted children of every node in drawing order, each against what the failed ones left of p.

    A trial of token x, drawn from q, succeeds with probability a = min(1, owed * p(x) / q(x)). A failed one leaves
    max(0, owed * p - q), of mass R, normalised, and R / (R + 1 - owed) of the debt. With a debt of 1 this is multi-step
    speculative sampling (SpecInfer, section 4.3), whose debt stays 1. Traversal verification goes through all trials as if
    they failed, one level of the tree after the other: what a child owes is the acceptance of its trial.

    A row is read once for each trial that fails, whatever failed before being computed again on the way: nothing of a
    vocabulary's size is written.

    Args:
        p: [P, V] float64, contiguous, V a multiple of `ROW_UNIT`: what the LLM's token at a node is distributed like.
        q: [rows, V] likewise: what children were drawn from.
        tokens: [nodes, K] int32, the token of each trial; -1 ends a node's trials.
        q_rows: [nodes, K] int32, the row of `q` that the token was drawn from, in which it has a probability; -1 for a token that
            was chosen, a point mass.
        uniforms: [nodes, K + 1] float64 in [0, 1): trial i succeeds if number i is less than its acceptance; after i failed
            trials the bonus token is the first whose cumulated probability exceeds number i.
        p_rows: [nodes] int32, the row of `p` of each node; 0, 1, 2, … by default.
        owed: [nodes] float64 in 0 … 1, 1 by default; nodes that owe 0, such as padding, cost nothing.
        is_decided: [nodes] int32, whether trials succeed by `uniforms`, as they do by default; otherwise only where they can't fail.

    Raises:
        UncoveredCase: for other types, unaligned or strided rows, or a vocabulary that is too large.
    """
    _check(p, q)
    nodes, width = tokens.shape
    terms = torch.empty((nodes, width, 4), dtype=torch.float64, device=p.device)
    p_rows = torch.arange(nodes, dtype=torch.int32, device=p.device) if p_rows is None else p_rows
    owed = torch.ones(nodes, dtype=torch.float64, device=p.device) if owed is None else owed
    is_decided = torch.ones(nodes, dtype=torch.int32, device=p.device) if is_decided is None else is_decided
    accepted, bonus = torch.empty((2, nodes), dtype=torch.int32, device=p.device)
    owed_left = torch.empty_like(owed)
    if nodes:
        _residual[(nodes,)](
            *(p, q, p_rows, tokens, q_rows, uniforms, owed, is_decided, terms, accepted, owed_left, bonus),
            *(p.shape[1], width),
            BLOCK=_BLOCK,
            MAX_BLOCKS=_MAX_BLOCKS,
            **launch_options(_NUM_WARPS),
        )
    return Trials(terms[..., 0], terms[..., 1], accepted, owed_left, bonus)


def _check(p: torch.Tensor, q: torch.Tensor) -> None:
    if p.dtype != torch.float64 or q.dtype != p.dtype:
        raise UncoveredCase(f"residual of p in {p.dtype} and q in {q.dtype}: both have to be torch.float64")
    most = _BLOCK * _MAX_BLOCKS
    if p.shape[1] > most:
        raise UncoveredCase(f"residual over a vocabulary of {p.shape[1]}: {most} is the most")
    for name, rows in (("p", p), ("q", q)):
        if not rows.is_contiguous() or rows.shape[1] != p.shape[1] or rows.shape[1] % ROW_UNIT or rows.data_ptr() % _ALIGNMENT:
            raise UncoveredCase(
                f"residual of {name} of shape {tuple(rows.shape)}, strides {rows.stride()} at address {rows.data_ptr()}: rows have to be "
                f"contiguous, as long as p's, a multiple of {ROW_UNIT}, and to begin at a multiple of {_ALIGNMENT} bytes"
            )


def residual_variants(target: GpuTarget) -> list[KernelVariant]:
    """The one specialisation that `residual` launches."""
    return [
        KernelVariant(
            kernel="residual",
            case="float64",
            function=_residual,
            signature={
                **{name: triton_type(torch.float64) for name in ("p", "q")},
                **{name: triton_type(torch.int32) for name in ("p_rows", "tokens", "q_rows")},
                **{name: triton_type(torch.float64) for name in ("uniforms", "owed")},
                "is_decided": "*i32",
                "terms": "*fp64",
                "accepted": "*i32",
                "owed_left": "*fp64",
                "bonus": "*i32",
                **{name: "i32" for name in ("vocab", "num_trials")},
                **{name: "constexpr" for name in ("BLOCK", "MAX_BLOCKS")},
            },
            constants={"BLOCK": _BLOCK, "MAX_BLOCKS": _MAX_BLOCKS},
            divisible=frozenset({"p", "q", "vocab"}),
            num_warps=_NUM_WARPS,
        )
    ]


@triton.jit(do_not_specialize=["num_trials"], do_not_specialize_on_alignment=list(_SMALL))
def _residual(
    p,  # [P, vocab]
    q,  # [rows, vocab]
    p_rows,  # [nodes]
    tokens,  # [nodes, num_trials]
    q_rows,  # [nodes, num_trials]
    uniforms,  # [nodes, num_trials + 1]
    owed,  # [nodes]
    is_decided,  # [nodes]
    terms,  # [nodes, num_trials, 4]: acceptance, mass, and the factors of p and q with which the trial counts in `_left`
    accepted,  # [nodes]
    owed_left,  # [nodes]
    bonus,  # [nodes]
    vocab,
    num_trials,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
):
    node = tl.program_id(0).to(tl.int64)
    p += tl.load(p_rows + node).to(tl.int64) * vocab
    tokens += node * num_trials
    q_rows += node * num_trials
    uniforms += node * (num_trials + 1)
    terms += node * num_trials * 4
    debt = tl.load(owed + node)
    decided = tl.load(is_decided + node) != 0
    mass = tl.full([], 1.0, tl.float64)  # of what the failed trials left
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
            drawn = tl.load(q + row * vocab + token, mask=row >= 0, other=1.0)
            ratio = debt * (_left(p, q, tokens, q_rows, terms, count, vocab, token) / mass) / drawn
            acceptance = tl.where(ratio >= 1, 1.0, ratio)  # a NaN stays one, and fails
            tl.store(terms + count * 4, acceptance)
            if ((tl.load(uniforms + count) < acceptance) & decided) | (acceptance >= 1):
                chosen = count
                most = count
                tl.store(terms + count * 4 + 1, 0.0)
            else:
                rest, new_ends, debt = _fail(p, q, tokens, q_rows, terms, count, vocab, debt, mass, BLOCK=BLOCK, MAX_BLOCKS=MAX_BLOCKS)
                if rest != 0:
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
            mass, ends = _sums(p, q, tokens, q_rows, terms, count, vocab, BLOCK=BLOCK, MAX_BLOCKS=MAX_BLOCKS)
        following = _drawn(p, q, tokens, q_rows, terms, count, vocab, tl.load(uniforms + count), mass, ends, BLOCK=BLOCK)
    tl.store(accepted + node, chosen)
    tl.store(owed_left + node, debt)
    tl.store(bonus + node, following)


@triton.jit
def _fail(p, q, tokens, q_rows, terms, count, vocab, debt, mass, BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr):
    """Makes a trial count as failed: the mass that it leaves, that up to the end of each block, and what is owed then."""
    tl.store(terms + count * 4 + 2, debt / mass)
    tl.store(terms + count * 4 + 3, 1.0)
    tl.debug_barrier()
    rest, ends = _sums(p, q, tokens, q_rows, terms, count + 1, vocab, BLOCK=BLOCK, MAX_BLOCKS=MAX_BLOCKS)
    tl.store(terms + count * 4 + 1, rest)
    if rest == 0:
        # What rounding empties stays as it was.
        tl.store(terms + count * 4 + 2, 1.0)
        tl.store(terms + count * 4 + 3, 0.0)
        tl.debug_barrier()
    failing = rest + (1.0 - debt)
    # Where rounding says that the trial could not fail, the whole debt is left.
    return rest, ends, tl.where(failing == 0, 1.0, rest / tl.where(failing == 0, 1.0, failing))


@triton.jit
def _left(p, q, tokens, q_rows, terms, count, vocab, columns):
    """At one column or a block of them, what the first `count` trials left of p, not normalised."""
    left = tl.load(p + columns, mask=columns < vocab, other=0.0)
    for trial in range(count):
        token = tl.load(tokens + trial)
        row = tl.load(q_rows + trial).to(tl.int64)
        drawn = tl.load(q + row * vocab + columns, mask=columns < tl.where(row >= 0, vocab, 0), other=0.0)
        drawn += (columns == tl.where(row < 0, token, -1)).to(tl.float64)
        rest = tl.load(terms + trial * 4 + 2) * left - tl.load(terms + trial * 4 + 3) * drawn
        left = tl.where(rest <= 0, 0.0, rest)  # and not a maximum, which would drop a NaN
    return left


@triton.jit
def _sums(p, q, tokens, q_rows, terms, count, vocab, BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr):
    """In one pass: the mass of what `count` trials left, and [MAX_BLOCKS] that up to the end of each block."""
    places = tl.arange(0, MAX_BLOCKS)
    mass = tl.full([], 0.0, tl.float64)
    ends = tl.zeros([MAX_BLOCKS], tl.float64)
    for block in range(tl.cdiv(vocab, BLOCK)):
        columns = block * BLOCK + tl.arange(0, BLOCK)
        mass += tl.sum(_left(p, q, tokens, q_rows, terms, count, vocab, columns))
        ends = tl.where(places >= block, mass, ends)
    return mass, ends


@triton.jit
def _drawn(p, q, tokens, q_rows, terms, count, vocab, uniform, mass, ends, BLOCK: tl.constexpr):
    """The first token up to which what `count` trials left, of that mass, exceeds its share `uniform`; -1 if nothing is left."""
    target = uniform * mass
    block = tl.minimum(tl.sum((ends <= target).to(tl.int32)), tl.cdiv(vocab, BLOCK) - 1)
    before = tl.max(tl.where(ends <= target, ends, 0.0))
    columns = block * BLOCK + tl.arange(0, BLOCK)
    left = _left(p, q, tokens, q_rows, terms, count, vocab, columns)
    # Sums of a scan need not grow: a token without probability is never taken, and the last with some ends the search.
    reached = (before + tl.cumsum(left, 0) > target) & (left > 0)
    first = tl.min(tl.where(reached, columns, vocab))
    last = tl.max(tl.where(left > 0, columns, -1))
    return tl.where(mass > 0, tl.where(first < vocab, first, last), -1)


def residual_reference(
    p: torch.Tensor,
    q: torch.Tensor,
    tokens: torch.Tensor,
    q_rows: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    p_rows: torch.Tensor | None = None,
    owed: torch.Tensor | None = None,
    is_decided: torch.Tensor | None = None,
) -> Trials:
    """`residual` in plain PyTorch."""
    nodes, width = tokens.shape
    own = torch.arange(nodes, device=p.device)
    left = p if p_rows is None else p[p_rows.long()]
    debt = torch.ones(nodes, dtype=torch.float64, device=p.device) if owed is None else owed.clone()
    decided = torch.ones(nodes, dtype=torch.bool, device=p.device) if is_decided is None else is_decided != 0
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
            drawn = torch.where((row >= 0)[:, None], q[row.clamp(min=0)], drawn)
        ratio = debt * left[own, token] / drawn[own, token]
        acceptance = torch.where(ratio >= 1, 1.0, ratio)
        succeeds = running & ((uniforms[:, trial] < acceptance) & decided | (acceptance >= 1))
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
