"""Second half of split attention (flash-decoding): partial results of the parts of the keys, weighted by their sums of weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

MOST_SPLITS = 32
_LARGEST_HEAD = 256
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WARPS = 4
_CONSTANTS = {"BLOCK_S": MOST_SPLITS, "BLOCK_D": _LARGEST_HEAD}
_COUNTS = ("splits", "num_tokens", "heads", "dim_eighths")


@triton.jit(do_not_specialize=[*_COUNTS], do_not_specialize_on_alignment=["log_sums", "slots"])
def combine_splits_kernel(
    out,  # [tokens, heads, head_dim]
    partial,  # [splits, tokens, heads, head_dim]
    log_sums,  # [splits, tokens, heads]
    slots,  # [tokens]
    splits,
    num_tokens,
    heads,
    dim_eighths,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    line = token.to(tl.int64) * heads + tl.program_id(1)
    split = tl.arange(0, BLOCK_S)
    dims = tl.arange(0, BLOCK_D)
    head_dim = dim_eighths * 8
    real_dim = dims < head_dim
    # Nobody wrote the rows of padding tokens.
    written_splits = tl.where(tl.load(slots + token) >= 0, splits, 0)
    lines = split.to(tl.int64) * num_tokens * heads + line
    sums = tl.load(log_sums + lines, mask=split < written_splits, other=-float("inf"))
    best = tl.max(sums, axis=0)
    weights = tl.exp2(sums - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(weights, axis=0)
    weights /= tl.where(total == 0.0, 1.0, total)
    written = (sums > -float("inf"))[:, None] & real_dim[None, :]
    parts = tl.load(partial + (lines * dim_eighths * 8)[:, None] + dims[None, :], mask=written, other=0.0)
    result = tl.sum(weights[:, None] * parts, axis=0)
    tl.store(out + line * dim_eighths * 8 + dims, result.to(out.dtype.element_ty), mask=real_dim)


def combine_splits(partial: Tensor, log_sums: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Attention over all keys from attention over parts of them.

    Sinks are in the first part's sums already.

    Args:
        partial: [splits, tokens, heads, head_dim] float32, each part's own softmax average; anything where the sum is -inf.
        log_sums: [splits, tokens, heads] float32, the logarithm to base 2 of each part's sum of weights.
        slots: [tokens] int32, negative for padding tokens.
        dtype: of the result.

    Returns:
        [tokens, heads, head_dim]; zeros for padding tokens.

    Raises:
        UncoveredCase: for more than 32 splits, or a dtype or head size that no variant is for.
    """
    splits, num_tokens, heads, head_dim = partial.shape
    _check(dtype, head_dim)
    if splits > MOST_SPLITS:
        raise UncoveredCase(f"attention in {splits} splits: at most {MOST_SPLITS} are reduced")
    assert partial.is_contiguous() and log_sums.is_contiguous() and partial.dtype == log_sums.dtype == torch.float32
    out = torch.empty((num_tokens, heads, head_dim), dtype=dtype, device=partial.device)
    combine_splits_kernel[num_tokens, heads](
        out, partial, log_sums, slots, splits, num_tokens, heads, head_dim // 8, **_CONSTANTS, **launch_options(_WARPS)
    )
    return out


def _check(dtype: torch.dtype, head_dim: int) -> None:
    if dtype not in _DTYPES or head_dim > _LARGEST_HEAD or head_dim % 8:
        allowed = f"{', '.join(map(str, _DTYPES))}, multiples of 8 up to {_LARGEST_HEAD}"
        raise UncoveredCase(f"reduction of splits, {dtype}, head size {head_dim}: there are {allowed}")


def combine_splits_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `combine_splits` launches on `target`."""
    return [
        KernelVariant(
            kernel="combine_splits",
            case=triton_type(dtype, is_pointer=False),
            function=combine_splits_kernel,
            signature={
                "out": triton_type(dtype),
                "partial": "*fp32",
                "log_sums": "*fp32",
                "slots": "*i32",
                **dict.fromkeys(_COUNTS, "i32"),
                **dict.fromkeys(_CONSTANTS, "constexpr"),
            },
            constants=_CONSTANTS,
            divisible=frozenset({"out", "partial"}),
            num_warps=_WARPS,
        )
        for dtype in _DTYPES
    ]


def combine_splits_reference(partial: Tensor, log_sums: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """As `combine_splits`, in PyTorch operators."""
    has_keys = log_sums > -torch.inf
    weights = torch.softmax(log_sums.double() * torch.log(torch.tensor(2.0, dtype=torch.float64)), dim=0)
    parts = torch.where(has_keys[..., None], partial.double(), 0.0)
    out = (weights[..., None] * parts).sum(0)
    return torch.where((slots >= 0)[:, None, None], out, 0.0).to(dtype)
