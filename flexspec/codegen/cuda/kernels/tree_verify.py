"""The walk that follows plain decoding through each request's token tree, on the device: only its few integers leave."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from flexspec.codegen.cuda.kernels.philox import gumbel_reference, signed, words_reference
from flexspec.codegen.cuda.kernels.tree_verify_kernel import (
    BEST,
    BEST_SIZES,
    CUTS,
    KEYS,
    RESULTS,
    TREES,
    WALK_SIZES,
    best_tokens_kernel,
    walk_kernel,
)
from flexspec.codegen.cuda.kernels.truncate import Cuts
from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget

_DTYPES = (torch.float32, torch.bfloat16)
_CHUNK = 1024
"""Logits that a program compares at once."""
_NOISY_CHUNK = 512
"""The same with noise, which takes many registers."""
_MAX_SPLITS = 256
_PROGRAMS = 2048
"""Programs that a launch has about, so that few nodes occupy a GPU and many have little to combine."""
_REQUESTS = 256
"""Requests that are looked through at once for a node's own."""
_NODES = 256
"""Nodes that are looked through at once for a child."""
_DEPTHS = 64
"""Places of a path that are filled up at once."""
_UNIT = 16
"""Elements that rows are multiples of where a thread loads 16 bytes at once."""
_ALIGNMENT = 16
_KEY_DTYPES = (torch.int64, torch.int32, torch.int32, torch.float64)
"""Of seeds, completions, indices and temperatures."""
_NUM_WARPS = 4
_NUM_STAGES = 2


class Walks(NamedTuple):
    """What `tree_verify` says of each request.

    Attributes:
        paths: [R, max_depth] int32, the nodes of its tree on the path, the root first, then -1.
        lengths: [R] int32, how many these are; 0 without a tree.
        bonus: [R] int32, the token after the last of them; -1 if the logits there are not finite, or without a tree.
    """

    paths: Tensor
    lengths: Tensor
    bonus: Tensor


def tree_verify(
    logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    node_starts: Tensor,
    *,
    vocab_limits: Tensor,
    seeds: Tensor | None = None,
    completions: Tensor | None = None,
    indices: Tensor | None = None,
    temperatures: Tensor | None = None,
    cuts: Cuts | None = None,
    max_depth: int | None = None,
) -> Walks:
    """Goes from node to node of each tree by the token that plain decoding would choose there, while the tree has it.

    Plain decoding chooses the best logit / temperature + Gumbel noise, the noise keyed by (seed, completion, text position,
    token), in float64 and the lowest id among equals; at temperature 0 the best logit. Of children with the same token the
    walk goes to the first. It is `flexspec.runtime`'s walk for requests without rules.

    Args:
        logits: [M, V] float32 or bfloat16, rows contiguous: the LLM's at the nodes of R trees, one tree after the
            other.
        tokens: [M] int32, the nodes' own.
        parents: [M] int32, numbers in the node's own tree, each smaller than the node's; -1 for roots.
        node_starts: [R + 1] int32, where each tree begins; nodes from the last entry on are padding, as are requests whose
            entry equals the next.
        vocab_limits: [R] int32; token ids from here on are never chosen.
        seeds: [R] int64 or uint64; None, as the next three, if all requests are greedy: no noise is made then.
        completions: [R] int32.
        indices: [R] int32, text positions of the tokens that follow the roots.
        temperatures: [R] float64.
        cuts: what `truncate` keeps at each node of a request with a temperature; None if nothing is cut.
        max_depth: most nodes of a path, the number of nodes by default. The token of the next node is then the bonus token.

    Raises:
        UncoveredCase: for other types of logits, or rows that begin at no multiple of 16 bytes.
    """
    num_nodes, vocab = logits.shape
    num_requests = len(node_starts) - 1
    if logits.dtype not in _DTYPES or logits.data_ptr() % _ALIGNMENT:
        raise UncoveredCase(
            f"tree_verify of {logits.dtype} logits at {logits.data_ptr():#x}: it takes {', '.join(map(str, _DTYPES))} at multiples of "
            f"{_ALIGNMENT}"
        )
    assert logits.stride(1) == 1 or vocab == 1
    keys = (seeds, completions, indices, temperatures)
    with_noise = temperatures is not None
    assert all((key is not None) == with_noise for key in keys), "seeds, completions, indices and temperatures go together"
    if seeds is not None:
        keys = (signed(seeds), completions, indices, temperatures)
    assert all(key is None or key.dtype == dtype for key, dtype in zip(keys, _KEY_DTYPES, strict=True))
    max_depth = num_nodes if max_depth is None else max_depth
    chunk = _NOISY_CHUNK if with_noise else _CHUNK
    split_chunks, num_splits = _splits(num_nodes, triton.cdiv(vocab, chunk))
    best_logits, best_noises = torch.empty((2, num_nodes, num_splits), dtype=torch.float64, device=logits.device)
    best_ids = torch.empty((num_nodes, num_splits), dtype=torch.int32, device=logits.device)
    best = (best_logits, best_noises if with_noise else None, best_ids)
    paths = torch.empty((num_requests, max_depth), dtype=torch.int32, device=logits.device)
    lengths, bonus = torch.empty((2, num_requests), dtype=torch.int32, device=logits.device)
    # Of kernels without noise these are no arguments; what is not read may be anything of its type.
    cut: tuple[Tensor | None, Tensor | None] = (best_ids.view(torch.float32), best_ids) if with_noise else (None, None)
    if cuts is not None:
        assert with_noise, "nothing is cut without a temperature"
        cut = cuts
    row = logits.stride(0)
    unit = _UNIT if row % _UNIT == 0 and vocab % _UNIT == 0 else 1
    launch = {"NOISE": with_noise, **launch_options(_NUM_WARPS, _NUM_STAGES)}
    best_tokens_kernel[(num_nodes, num_splits)](
        *(
            logits,
            parents,
            node_starts,
            vocab_limits,
            *keys,
            *cut,
            *best,
            num_requests,
            row // unit,
            vocab // unit,
            split_chunks,
            int(cuts is not None),
        ),
        UNIT=unit,
        CHUNK=chunk,
        REQUESTS=_REQUESTS,
        **launch,
    )
    walk_kernel[(num_requests,)](
        *(tokens, parents, node_starts, temperatures, *best, paths, lengths, bonus, num_splits, max_depth),
        SPLITS=_MAX_SPLITS,
        NODES=_NODES,
        DEPTHS=_DEPTHS,
        **launch,
    )
    return Walks(paths, lengths, bonus)


def _splits(num_nodes: int, num_chunks: int) -> tuple[int, int]:
    """Chunks in a part of the vocabulary that has a program of its own, and the number of these parts."""
    split_chunks = triton.cdiv(num_chunks, min(_MAX_SPLITS, max(1, _PROGRAMS // num_nodes)))
    return split_chunks, triton.cdiv(num_chunks, split_chunks)


def tree_verify_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `tree_verify` launches, of its two kernels."""
    return [
        *(
            _best_tokens_variant(dtype, with_noise=with_noise, unit=unit)
            for dtype in _DTYPES
            for with_noise in (False, True)
            for unit in (_UNIT, 1)
        ),
        *(_walk_variant(with_noise=with_noise) for with_noise in (False, True)),
    ]


def _key_types(with_noise: bool) -> dict[str, str]:
    return {name: triton_type(dtype) if with_noise else "constexpr" for name, dtype in zip(KEYS, _KEY_DTYPES, strict=True)}


def _cut_types(with_noise: bool) -> dict[str, str]:
    return dict(zip(CUTS, ("*fp32", "*i32") if with_noise else ("constexpr", "constexpr"), strict=True))


def _best_types(with_noise: bool) -> dict[str, str]:
    return dict(zip(BEST, ("*fp64", "*fp64" if with_noise else "constexpr", "*i32"), strict=True))


def _best_tokens_variant(dtype: torch.dtype, *, with_noise: bool, unit: int) -> KernelVariant:
    constants = {"NOISE": with_noise, "UNIT": unit, "CHUNK": _NOISY_CHUNK if with_noise else _CHUNK, "REQUESTS": _REQUESTS}
    signature = {
        "logits": triton_type(dtype),
        **{name: "*i32" for name in ("parents", "node_starts", "vocab_limits")},
        **_key_types(with_noise),
        **_cut_types(with_noise),
        **_best_types(with_noise),
        **{name: "i32" for name in BEST_SIZES},
        **{name: "constexpr" for name in constants},
    }
    return KernelVariant(
        kernel="best_tokens",
        case=f"{str(dtype).removeprefix('torch.')}, {_kind(with_noise)}{', odd vocabulary' * (unit == 1)}",
        function=best_tokens_kernel,
        signature=signature,
        constants={**_absent(signature, constants), **constants},
        divisible=frozenset({"logits"}),
        num_warps=_NUM_WARPS,
        num_stages=_NUM_STAGES,
    )


def _walk_variant(*, with_noise: bool) -> KernelVariant:
    constants = {"NOISE": with_noise, "SPLITS": _MAX_SPLITS, "NODES": _NODES, "DEPTHS": _DEPTHS}
    signature = {
        **{name: "*i32" for name in TREES},
        "temperatures": _key_types(with_noise)["temperatures"],
        **_best_types(with_noise),
        **{name: "*i32" for name in RESULTS},
        **{name: "i32" for name in WALK_SIZES},
        **{name: "constexpr" for name in constants},
    }
    return KernelVariant(
        kernel="walk",
        case=_kind(with_noise),
        function=walk_kernel,
        signature=signature,
        constants={**_absent(signature, constants), **constants},
        num_warps=_NUM_WARPS,
        num_stages=_NUM_STAGES,
    )


def _kind(with_noise: bool) -> str:
    return "noise" if with_noise else "greedy"


def _absent(signature: Mapping[str, str], constants: Mapping[str, int]) -> dict[str, None]:
    """The tensors that a variant does without."""
    return {name: None for name, kind in signature.items() if kind == "constexpr" and name not in constants}


def tree_verify_reference(
    logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    node_starts: Tensor,
    *,
    vocab_limits: Tensor,
    seeds: Tensor | None = None,
    completions: Tensor | None = None,
    indices: Tensor | None = None,
    temperatures: Tensor | None = None,
    cuts: Cuts | None = None,
    max_depth: int | None = None,
) -> Walks:
    """As `tree_verify`, node by node."""
    starts = node_starts.tolist()
    num_requests = len(starts) - 1
    paths = torch.full((num_requests, len(logits) if max_depth is None else max_depth), -1, dtype=torch.int32)
    lengths, bonus = torch.zeros(num_requests, dtype=torch.int32), torch.full((num_requests,), -1, dtype=torch.int32)
    for row, (first, end) in enumerate(pairwise(starts)):
        key = None
        if seeds is not None and completions is not None and indices is not None and temperatures is not None and temperatures[row]:
            key = _Key(int(signed(seeds)[row]) % 2**64, int(completions[row]), int(indices[row]), float(temperatures[row]))
        children: dict[tuple[int, int], int] = {}
        for node in range(1, end - first):
            children.setdefault((int(parents[first + node]), int(tokens[first + node])), node)
        child = 0 if first < end else None
        while child is not None and lengths[row] < paths.shape[1]:
            depth = int(lengths[row])
            paths[row, depth] = child
            lengths[row] += 1
            cut = None if cuts is None else (float(cuts.logits[first + child]), int(cuts.ids[first + child]))
            token = _choice(logits[first + child, : int(vocab_limits[row])], depth, key, cut)
            bonus[row] = token
            child = children.get((child, token))
    return Walks(paths, lengths, bonus)


class _Key(NamedTuple):
    seed: int
    completion: int
    position: int
    temperature: float


def _choice(logits: Tensor, depth: int, key: _Key | None, cut: tuple[float, int] | None) -> int:
    """The token that plain decoding chooses at a node, the likeliest without a key; -1 if the logits are not finite."""
    values = logits.float().numpy()
    top = int(values.argmax())
    if not np.isfinite(values[top]):
        return -1
    if key is None:
        return top
    words = words_reference(key.seed, key.completion, index=key.position + depth, stream=0, first=0, count=len(values))
    with np.errstate(over="ignore"):
        scores = (values.astype(np.float64) - values[top]) / key.temperature
    if cut is not None:
        scores[(values < np.float32(cut[0])) | ((values == np.float32(cut[0])) & (np.arange(len(values)) > cut[1]))] = -np.inf
    return int((scores + gumbel_reference(words)).argmax())
