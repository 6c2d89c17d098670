"""What the LLM's token at each node is distributed like, from its logits."""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from flexspec.codegen.cuda.kernels.residual import ROW_UNIT
from flexspec.codegen.cuda.kernels.truncate import Cuts, peak_of
from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

_ALIGNMENT = 16
_BLOCK = 2048
"""Logits that a program looks at together."""
_NUM_WARPS = 16
_SMALL = ("temperatures", "vocab_limits", "cut_logits", "cut_ids")
"""Arguments of which single numbers are read: nothing is gained by knowing how they are aligned."""


def probabilities(logits: Tensor, *, temperatures: Tensor, vocab_limits: Tensor, cuts: Cuts | None = None) -> Tensor:
    """The softmax of logits / temperature over what is kept at each node, in float64.

    A program has a row, and sums in the same order whatever else is launched.

    Args:
        logits: [M, V] float32, contiguous.
        temperatures: [M] float64, above 0.
        vocab_limits: [M] int32; token ids from here on have no probability.
        cuts: what `truncate` keeps; None if nothing is cut.

    Returns:
        [M, V'] float64, V' the next multiple of `ROW_UNIT`; zeros from V on, NaNs in rows whose largest logit is not finite.

    Raises:
        UncoveredCase: for other logits.
    """
    nodes, vocab = logits.shape
    if logits.dtype != torch.float32 or not logits.is_contiguous() or logits.data_ptr() % _ALIGNMENT:
        raise UncoveredCase(
            f"probabilities of {logits.dtype} logits of strides {logits.stride()} at {logits.data_ptr():#x}: it takes torch.float32, "
            f"contiguous, at multiples of {_ALIGNMENT}"
        )
    width = triton.cdiv(vocab, ROW_UNIT) * ROW_UNIT
    cuts = _no_cuts(logits) if cuts is None else cuts
    probs = torch.empty((nodes, width), dtype=torch.float64, device=logits.device)
    probabilities_kernel[(nodes,)](
        *(logits, temperatures, vocab_limits, *cuts, probs, vocab, width // ROW_UNIT),
        UNIT=ROW_UNIT,
        BLOCK=_BLOCK,
        **launch_options(_NUM_WARPS),
    )
    return probs


def _no_cuts(logits: Tensor) -> Cuts:
    nodes = len(logits)
    return Cuts(
        torch.full((nodes,), -torch.inf, device=logits.device), torch.full((nodes,), 2**31 - 1, dtype=torch.int32, device=logits.device)
    )


def probabilities_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `probabilities` launches."""
    return [
        KernelVariant(
            kernel="probabilities",
            case="float32" + ", odd vocabulary" * (not is_aligned),
            function=probabilities_kernel,
            signature={
                "logits": triton_type(torch.float32),
                "temperatures": "*fp64",
                "vocab_limits": "*i32",
                "cut_logits": "*fp32",
                "cut_ids": "*i32",
                "probs": "*fp64",
                "vocab": "i32",
                "width_units": "i32",
                "UNIT": "constexpr",
                "BLOCK": "constexpr",
            },
            constants={"UNIT": ROW_UNIT, "BLOCK": _BLOCK},
            divisible=frozenset({"logits", "probs", *(["vocab"] if is_aligned else [])}),
            num_warps=_NUM_WARPS,
        )
        for is_aligned in (True, False)
    ]


@triton.jit(do_not_specialize=["width_units"], do_not_specialize_on_alignment=list(_SMALL))
def probabilities_kernel(
    logits,  # [M, vocab]
    temperatures,  # [M]
    vocab_limits,  # [M]
    cut_logits,  # [M]
    cut_ids,  # [M]
    probs,  # [M, width_units * UNIT]
    vocab,
    width_units,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    node = tl.program_id(0)
    width = width_units * UNIT
    logits += node.to(tl.int64) * vocab
    probs += node.to(tl.int64) * width
    temperature = tl.load(temperatures + node)
    limit = tl.load(vocab_limits + node)
    cut, cut_id = tl.load(cut_logits + node), tl.load(cut_ids + node)
    peak = peak_of(logits, vocab, limit, BLOCK)
    is_finite = (peak > -float("inf")) & (peak < float("inf"))
    sums = tl.zeros([BLOCK], tl.float64)
    base = tl.where(is_finite, peak, 0.0)
    for start in range(0, vocab, BLOCK):
        sums += _weights(logits, start, vocab, limit, cut, cut_id, base, temperature, BLOCK)
    total = tl.where(is_finite, tl.sum(sums, axis=0), float("nan"))
    for start in range(0, width, BLOCK):
        weights = _weights(logits, start, vocab, limit, cut, cut_id, base, temperature, BLOCK)
        columns = start + tl.arange(0, BLOCK)
        tl.store(probs + columns, tl.where(is_finite, weights, 0.0) / total, mask=columns < width)


@triton.jit
def _weights(logits, start, vocab, limit, cut, cut_id, peak, temperature, BLOCK: tl.constexpr):
    """exp((logit - peak) / temperature) of a block of tokens, 0 of those that are not kept."""
    ids = start + tl.arange(0, BLOCK)
    values = tl.load(logits + ids, mask=ids < vocab, other=-float("inf"))
    is_kept = ((values > cut) | ((values == cut) & (ids <= cut_id))) & (ids < limit)
    return tl.exp((tl.where(is_kept, values, -float("inf")).to(tl.float64) - peak) / temperature)


def probabilities_reference(logits: Tensor, *, temperatures: Tensor, vocab_limits: Tensor, cuts: Cuts | None = None) -> Tensor:
    """As `probabilities`, row by row."""
    nodes, vocab = logits.shape
    cuts = _no_cuts(logits) if cuts is None else cuts
    probs = torch.zeros((nodes, -(-vocab // ROW_UNIT) * ROW_UNIT), dtype=torch.float64)
    rules = zip(temperatures.tolist(), vocab_limits.tolist(), cuts.logits.tolist(), cuts.ids.tolist(), strict=True)
    for node, (temperature, limit, cut, cut_id) in enumerate(rules):
        values = logits[node, :limit].numpy()
        peak = values.max()
        if not np.isfinite(peak):
            probs[node] = torch.nan
            continue
        with np.errstate(over="ignore"):
            weights = np.exp((values.astype(np.float64) - peak) / temperature)
        is_kept = (values > cut) | ((values == np.float32(cut)) & (np.arange(len(values)) <= cut_id))
        kept = np.flatnonzero(is_kept & (weights > 0))
        probs[node, torch.from_numpy(kept)] = torch.from_numpy(weights[kept] / weights[kept].sum())
    return probs
