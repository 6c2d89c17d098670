"""The best tokens at the nodes that a draft model was just run on: what their children are chosen from."""

from typing import NamedTuple

import torch
import triton

from flexspec.codegen.cuda.kernels.draft_top_kernel import MERGE_INTEGERS, SPLIT_INTEGERS, merge_top, split_top
from flexspec.codegen.cuda.kernels.philox import gumbel_reference, signed, words_reference
from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

MOST_CHILDREN = 8
_DTYPES = (torch.float32, torch.bfloat16)
_ALIGNMENT = 16
_SIZES = {False: (4096, 128, 8), True: (2048, 256, 16)}
"""Without and with noise: tokens of a program, the most programs of a node, warps."""
_MERGE_WARPS = 4


class SharedNoise(NamedTuple):
    """The noise that a request's drafts share with its verification.

    Attributes:
        seeds: [R] int64, the bits of the requests' seeds.
        completions: [R] int32.
        alphas: [R] float64, how far a draft model trusts the noise.
    """

    seeds: torch.Tensor
    completions: torch.Tensor
    alphas: torch.Tensor


class TopTokens(NamedTuple):
    """The best tokens at some nodes, best first.

    Attributes:
        ids: [N, k] int32; -1 where there are no more that may be chosen, at padding, and at nodes with numbers that are not finite.
        log_probs: [N, k] float32, the logarithm of each one's share; minus infinity without a token.
    """

    ids: torch.Tensor
    log_probs: torch.Tensor


def draft_top(
    logits: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    request_rows: torch.Tensor,
    temperatures: torch.Tensor,
    *,
    k: int,
    noise: SharedNoise | None = None,
    token_ids: torch.Tensor | None = None,
    num_columns: int | None = None,
) -> TopTokens:
    """The `k` best tokens at each node by log q / T + alpha * noise, of equals the lowest id first.

    The noise is that of the text position behind the node, which verification draws with too, and every token gets its own: none is
    left out for being unlikely. A token's share is the softmax of log q / T + noise, all of the noise counting however far it is
    trusted, or of log q / T where there is none. At temperature 0 noise does not count and T is 1. A row is split over several
    programs, whose bests a second kernel merges.

    Args:
        logits: [N, columns], contiguous; what is banned has minus infinity.
        slots: [N] int32; -1 for padding, which is not looked at.
        positions: [N] int32, text positions of the nodes.
        request_rows: [N] int32.
        temperatures: [R] float64.
        k: at most 8.
        noise: what the requests share; None for none.
        token_ids: [columns] int32 ascending, the token of each column; None for 0, 1, 2, …
        num_columns: how many columns may be chosen from, the rest being padding; None for all.

    Raises:
        UncoveredCase: for other types, strided or unaligned rows, more tokens a node or a vocabulary that is too large.
    """
    columns = logits.shape[1] if num_columns is None else num_columns
    _check(logits, k, columns)
    nodes, device = len(logits), logits.device
    is_noisy = noise is not None
    block, most_splits, num_warps = _SIZES[is_noisy]
    splits = triton.cdiv(columns, block)
    kind = torch.float64 if is_noisy else torch.float32
    keys, sums = torch.empty((nodes, splits, k), dtype=kind, device=device), torch.empty((2, nodes, splits), dtype=kind, device=device)
    found = torch.empty((nodes, splits, k), dtype=torch.int32, device=device)
    top = TopTokens(torch.empty((nodes, k), dtype=torch.int32, device=device), torch.empty((nodes, k), dtype=torch.float32, device=device))
    # Without noise or a map the kernels read none of these.
    seeds, completions, alphas = noise if noise is not None else (temperatures.view(torch.int64), request_rows, temperatures)
    ids = request_rows if token_ids is None else token_ids
    request = (slots, positions, request_rows, temperatures, signed(seeds), completions, alphas, ids)
    if nodes:
        has_map = token_ids is not None
        split_top[(nodes, splits)](
            *(logits, *request, keys, found, sums[0], sums[1], logits.shape[1], columns, k, splits),
            IS_NOISY=is_noisy,
            HAS_MAP=has_map and is_noisy,
            BLOCK=block,
            **launch_options(num_warps),
        )
        merge_top[(nodes,)](
            *(*request, keys, found, sums[0], sums[1], *top, k, splits, int(has_map)),
            IS_NOISY=is_noisy,
            MOST_SPLITS=most_splits,
            MOST=most_splits * MOST_CHILDREN,
            **launch_options(_MERGE_WARPS),
        )
    return top


def _check(logits: torch.Tensor, k: int, columns: int) -> None:
    if logits.dtype not in _DTYPES:
        raise UncoveredCase(f"draft_top of logits in {logits.dtype}: there are {', '.join(map(str, _DTYPES))}")
    if not 1 <= k <= MOST_CHILDREN:
        raise UncoveredCase(f"draft_top with k = {k}: 1 to {MOST_CHILDREN} tokens a node")
    if not logits.is_contiguous() or logits.data_ptr() % _ALIGNMENT:
        raise UncoveredCase(
            f"draft_top of logits with strides {logits.stride()} at address {logits.data_ptr()}: they have to be contiguous and to "
            f"begin at a multiple of {_ALIGNMENT} bytes"
        )
    most = min(block * splits for block, splits, _ in _SIZES.values())
    if not 1 <= columns <= min(most, logits.shape[1]):
        raise UncoveredCase(f"draft_top over {columns} of {logits.shape[1]} columns: 1 to {most}, of those that there are")


def draft_top_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation of the two kernels that `draft_top` launches."""
    return [
        *(
            _split_variant(dtype, is_noisy, has_map, is_aligned)
            for dtype in _DTYPES
            for is_noisy, has_map in ((False, False), (True, False), (True, True))
            for is_aligned in (True, False)
        ),
        *(_merge_variant(is_noisy) for is_noisy in (False, True)),
    ]


_REQUEST = {
    **{"slots": "*i32", "positions": "*i32", "request_rows": "*i32", "temperatures": "*fp64"},
    **{"seeds": "*i64", "completions": "*i32", "alphas": "*fp64", "token_ids": "*i32"},
}


def _parts(is_noisy: bool) -> dict[str, str]:
    kind = "*fp64" if is_noisy else "*fp32"
    return {"keys": kind, "columns": "*i32", "peaks": kind, "sums": kind}


def _split_variant(dtype: torch.dtype, is_noisy: bool, has_map: bool, is_aligned: bool) -> KernelVariant:
    block, _, num_warps = _SIZES[is_noisy]
    case = f"{str(dtype).removeprefix('torch.')}{', noise' * is_noisy}{', trimmed' * has_map}{', odd vocabulary' * (not is_aligned)}"
    constants = {"IS_NOISY": is_noisy, "HAS_MAP": has_map, "BLOCK": block}
    return KernelVariant(
        kernel="draft_top",
        case=case,
        function=split_top,
        signature={
            **{"logits": triton_type(dtype), **_REQUEST, **_parts(is_noisy), "stride": "i32"},
            **dict.fromkeys(SPLIT_INTEGERS, "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        divisible=frozenset({"logits", "stride"} if is_aligned else {"logits"}),
        num_warps=num_warps,
    )


def _merge_variant(is_noisy: bool) -> KernelVariant:
    most_splits = _SIZES[is_noisy][1]
    constants = {"IS_NOISY": is_noisy, "MOST_SPLITS": most_splits, "MOST": most_splits * MOST_CHILDREN}
    return KernelVariant(
        kernel="draft_top",
        case=f"merge{', noise' * is_noisy}",
        function=merge_top,
        signature={
            **{**_REQUEST, **_parts(is_noisy), "ids": "*i32", "log_probs": "*fp32"},
            **dict.fromkeys(MERGE_INTEGERS, "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        num_warps=_MERGE_WARPS,
    )


def draft_top_reference(
    logits: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    request_rows: torch.Tensor,
    temperatures: torch.Tensor,
    *,
    k: int,
    noise: SharedNoise | None = None,
    token_ids: torch.Tensor | None = None,
    num_columns: int | None = None,
) -> TopTokens:
    """`draft_top` in plain PyTorch and NumPy."""
    nodes, width = len(logits), logits.shape[1] if num_columns is None else num_columns
    tokens = torch.arange(width) if token_ids is None else token_ids[:width].long()
    top = TopTokens(torch.full((nodes, k), -1, dtype=torch.int32), torch.full((nodes, k), -torch.inf))
    for node in torch.nonzero(slots >= 0)[:, 0].tolist():
        row, request = logits[node, :width].double(), int(request_rows[node])
        if not row.max() < torch.inf or row.max() == -torch.inf:
            continue
        temperature = float(temperatures[request])
        scores = (row - row.max()) / (max(temperature, 1e-30) if temperature > 0 else 1.0)
        shares = scores
        if noise is not None and temperature > 0:
            key = int(signed(noise.seeds)[request]) % 2**64, int(noise.completions[request])
            words = words_reference(*key, index=int(positions[node]) + 1, stream=0, first=0, count=int(tokens[-1]) + 1)
            gumbel = torch.from_numpy(gumbel_reference(words))[tokens]
            scores, shares = scores + noise.alphas[request] * gumbel, scores + gumbel
        best = torch.sort(scores, descending=True, stable=True).indices[:k]
        best = best[scores[best] > -torch.inf]
        top.ids[node, : len(best)] = tokens[best].int()
        top.log_probs[node, : len(best)] = torch.log_softmax(shares, 0)[best].float()
    return top
