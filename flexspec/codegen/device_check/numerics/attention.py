"""Tree attention: trees and chains of several requests, all masks, splits and types, among blocks that hold garbage."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.tree_attention import tree_attention_reference
from flexspec.codegen.cuda.targets import device_target
from flexspec.codegen.cuda.tiles import block_tokens, query_tiles
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error
from flexspec.codegen.device_check.part import Context
from flexspec.runtime.token_tree import TokenTree

_BOUNDS = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2e-5}
"""A few roundings of the result's type: of the weights of softmax, and of the result itself."""
_PADDING = 3


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One pass.

    Attributes:
        name: what is special.
        nodes: tree nodes, or tokens of a chain, of each request; requests have the contexts of `Sizes.contexts` in turn.
        fed: how many of a tree's nodes, the last ones, are in the pass; the others are in the cache already.
        is_chain: of each request.
    """

    name: str
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    block_size: int = 16
    nodes: tuple[int, ...] = (20, 3, 33)
    fed: int | None = None
    is_chain: bool = False
    num_splits: int = 1
    window: int | None = None
    softcap: float | None = None
    has_slopes: bool = False
    has_sinks: bool = False


def attention_trials(context: Context) -> Iterator[Trial]:
    """The trials, the commonest cases first."""
    float8 = device_target(context.device).cache_float8
    cases = [
        AttentionCase(name="trees"),
        AttentionCase(name="trees, 4 splits", num_splits=4),
        AttentionCase(name="chains, blocks of 64", is_chain=True, block_size=64),
        AttentionCase(name="small trees, 16 rows", nodes=(4, 1, 2), num_splits=8, block_size=8),
        AttentionCase(name="head size 64, 64 rows", head_dim=64, nodes=(16, 9, 1)),
        AttentionCase(name="float16, head size 80", head_dim=80, dtype=torch.float16),
        AttentionCase(name="float32, head size 96", head_dim=96, dtype=torch.float32, num_splits=2),
        AttentionCase(name="window, 2 splits", window=24, num_splits=2),
        AttentionCase(name="soft cap, sinks", softcap=5.0, has_sinks=True),
        AttentionCase(name="ALiBi, sinks, 4 splits", has_slopes=True, has_sinks=True, num_splits=4),
        AttentionCase(name="tail of 1,000 slots", nodes=(1000,), fed=16, num_splits=4),
        AttentionCase(name="head size 256", head_dim=256, nodes=(8, 5)),
        AttentionCase(name="no groups", heads=3, kv_heads=3, nodes=(5, 1)),
    ]
    if float8 is None:
        context.leave_out("tree_attention, 8-bit cache", "this GPU has none, or its kind is not known")
    else:
        cases.insert(4, AttentionCase(name=f"cache {_name(float8)}", cache_dtype=float8))
        cases.append(AttentionCase(name=f"cache {_name(float8)}, float16, window", cache_dtype=float8, dtype=torch.float16, window=24))
    for case in cases:
        yield Trial(kernel="tree_attention", case=case.name, bound=_BOUNDS[case.dtype], error=lambda case=case: _error(context, case))  # type: ignore[misc]


def _error(context: Context, case: AttentionCase) -> float:
    tensors, options = _inputs(case, context.sizes.contexts)
    device = context.device
    on_device = {name: None if value is None else value.to(device) for name, value in tensors.items()}
    found = launcher("tree_attention", device)(**on_device, **options)
    wide = {name: value.float() if name in ("q", "keys", "values") and value is not None else value for name, value in tensors.items()}
    expected = tree_attention_reference(**wide, **options)  # type: ignore[arg-type]
    assert found.isfinite().all(), "rows that are not finite"
    is_real = tensors["slots"]
    assert is_real is not None
    return largest_error(found.cpu()[is_real >= 0], expected[is_real >= 0])


def _inputs(case: AttentionCase, contexts: tuple[int, ...]) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """The tensors of a pass, on the host, and the other arguments."""
    generator = torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    trees = [_tree(count, rng, is_chain=case.is_chain) for count in case.nodes]
    starts = [contexts[place % len(contexts)] for place in range(len(trees))]
    fed = [count if case.fed is None else min(case.fed, count) for count in case.nodes]
    words = 0 if case.is_chain else -(-max(case.nodes) // 32)
    slots, positions, context_lens, bits = [], [], [], []
    for tree, start, count in zip(trees, starts, fed, strict=True):
        own = np.arange(len(tree.tokens) - count, len(tree.tokens))
        slots.append(start + own)
        positions.append(start + np.array(tree.depths())[own])
        context_lens.append(start + own + 1 if case.is_chain else np.full(count, start))
        rows = np.zeros((count, words), dtype=np.int32)
        if words:
            ancestors = tree.ancestor_bits()[own]
            rows[:, : ancestors.shape[1]] = ancestors
        bits.append(rows)
    used = [start + count for start, count in zip(starts, case.nodes, strict=True)]
    tables, keys, values = _cache(case, used, generator)
    block = block_tokens(case.heads, case.kv_heads, max(fed))
    tiles = query_tiles(fed, block)
    padded = np.concatenate([tiles, np.zeros((1, 4), dtype=np.int32)])
    num_tokens = sum(fed) + _PADDING
    has_scales = case.cache_dtype is not None
    tensors: dict[str, Tensor | None] = {
        "q": torch.randn((num_tokens, case.heads, case.head_dim), generator=generator).to(case.dtype),
        "keys": keys,
        "values": values,
        "tiles": torch.from_numpy(padded),
        "positions": _flat(positions, 0),
        "context_lens": _flat(context_lens, 0),
        "slots": _flat(slots, -1),
        "tail_starts": torch.tensor(starts, dtype=torch.int32),
        "tail_bits": torch.from_numpy(np.concatenate([*bits, np.zeros((_PADDING, words), dtype=np.int32)])),
        "block_tables": tables,
        "slopes": 2.0 ** -torch.arange(1, case.heads + 1).float() if case.has_slopes else None,
        "sinks": torch.randn(case.heads, generator=generator) if case.has_sinks else None,
        "k_scales": 0.5 + torch.rand(case.kv_heads, generator=generator) if has_scales else None,
        "v_scales": 0.5 + torch.rand(case.kv_heads, generator=generator) if has_scales else None,
    }
    options = {
        "block_size": case.block_size,
        "block_tokens": block,
        "kv_heads": case.kv_heads,
        "scale": case.head_dim**-0.5,
        "num_splits": case.num_splits,
        "window": case.window,
        "softcap": case.softcap,
    }
    return tensors, options


def _tree(count: int, rng: np.random.Generator, *, is_chain: bool) -> TokenTree:
    parents = [-1, *(node - 1 if is_chain else int(rng.integers(node)) for node in range(1, count))]
    return TokenTree(tokens=[0] * count, parents=parents)


def _cache(case: AttentionCase, used: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Block tables in disorder, with entries that lie far outside where nothing is, and a cache of numbers only where something is."""
    blocks = [-(-slots // case.block_size) for slots in used]
    order = torch.randperm(sum(blocks) + 2, generator=generator).int()
    tables = torch.full((len(used), max(blocks) + 1), 2**30, dtype=torch.int32)
    shape = (len(order) * case.block_size, case.kv_heads, -(-case.head_dim // 16) * 16)
    keys, values = (torch.full(shape, torch.nan) for _ in range(2))
    for row, (slots, count) in enumerate(zip(used, blocks, strict=True)):
        tables[row, :count] = order[sum(blocks[:row]) : sum(blocks[: row + 1])]
        slot = torch.arange(slots)
        places = tables[row, slot // case.block_size].long() * case.block_size + slot % case.block_size
        for cache in (keys, values):
            cache[places] = torch.randn((slots, *shape[1:]), generator=generator)
            cache[places, :, case.head_dim :] = 0.0
    dtype = case.cache_dtype or case.dtype
    return tables, keys.to(dtype), values.to(dtype)


def _flat(parts: list[Any], padding: int) -> Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.full(_PADDING, padding)]).astype(np.int32))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
