"""Passes over paged caches, with each token's root path known, and ordinary causal attention over a path in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.cuda.tiles import block_tokens, query_tiles

# A block that no cache has: reading it crashes.
GARBAGE = 2**30


@dataclass(frozen=True, kw_only=True)
class Request:
    """`cached` slots, then a chain of `new` tokens, or a tree: `drafted` nodes of earlier passes and `new` ones.

    Of the drafted nodes every fourth was never written, and no token descends from it.
    """

    cached: int
    new: int
    drafted: int = 0
    is_tree: bool = False

    @property
    def num_slots(self) -> int:
        return self.cached + self.drafted + self.new


def tree(cached: int, new: int, drafted: int = 0) -> Request:
    return Request(cached=cached, new=new, drafted=drafted, is_tree=True)


def chain(cached: int, new: int = 1) -> Request:
    return Request(cached=cached, new=new)


class Case:
    """One pass; whatever no token sees is NaN, and so is what padding tokens ask."""

    def __init__(
        self,
        *requests: Request,
        seed: int = 0,
        kv_heads: int = 1,
        group: int = 2,
        head_dim: int = 16,
        block_size: int = 8,
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        tile_tokens: int | None = None,
        scale: float = 0.3,
        **options: Any,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.options = {"block_size": block_size, "kv_heads": kv_heads, "scale": scale, **options}
        self.heads, self.head_dim, self.padding = group * kv_heads, head_dim, 3
        num_tokens = sum(request.new for request in requests) + self.padding
        self.q = self._normal(num_tokens, self.heads, head_dim).to(dtype)
        self.q[-self.padding :] = torch.nan
        blocks = [-(-request.num_slots // block_size) for request in requests]
        order = self.random.permutation(sum(blocks) + 2)
        padded_dim = -(-head_dim // 16) * 16
        size = (len(order) * block_size, kv_heads, padded_dim)
        self.keys, self.values = (torch.full(size, torch.nan).to(cache_dtype or dtype) for _ in range(2))
        self.tables = torch.full((len(requests), max(blocks) + 2), GARBAGE, dtype=torch.int32)
        words = -(-max((request.drafted + request.new for request in requests if request.is_tree), default=0) // 32)
        self.bits = np.zeros((num_tokens, words), dtype=np.uint32)
        self.positions, self.context_lens, self.slots, self.tail_starts = [], [], [], []
        self.paths: list[list[int]] = []  # of each token, the physical slots on its root path
        for row, (request, count) in enumerate(zip(requests, blocks, strict=True)):
            taken, order = order[:count], order[count:]
            self.tables[row, :count] = torch.from_numpy(taken.astype(np.int32))
            self._add(request, [int(taken[slot // block_size]) * block_size + slot % block_size for slot in range(request.num_slots)])
        self.block_tokens = tile_tokens or block_tokens(self.heads, kv_heads, max(request.new for request in requests))
        needed = len(query_tiles([request.new for request in requests], self.block_tokens))
        self.tiles = torch.from_numpy(query_tiles([request.new for request in requests], self.block_tokens, num_tiles=needed + 1))
        seen = torch.tensor(sorted({slot for path in self.paths for slot in path}))
        for cache in (self.keys, self.values):
            cache[seen] = 0.0
            cache[seen, :, :head_dim] = self._normal(len(seen), kv_heads, head_dim).to(cache.dtype)

    def _normal(self, *size: int) -> Tensor:
        return torch.from_numpy(self.random.standard_normal(size)).float()

    def _add(self, request: Request, physical: list[int]) -> None:
        paths: list[list[int]] = []  # of each node
        for node in range(request.drafted + request.new):
            parent = int(self.random.integers(max(-1, node - 6), node)) if request.is_tree else node - 1
            if request.is_tree and 0 <= parent < request.drafted and parent % 4 == 1:
                parent -= 1
            paths.append([*(paths[parent] if parent >= 0 else []), node])
        for node in range(request.drafted, request.drafted + request.new):
            slot = request.cached + node
            if request.is_tree:
                for ancestor in paths[node]:
                    self.bits[len(self.slots), ancestor // 32] |= np.uint32(1 << (ancestor % 32))
            self.positions.append(request.cached + len(paths[node]) - 1)
            self.context_lens.append(request.cached if request.is_tree else slot + 1)
            self.slots.append(slot)
            self.paths.append(physical[: request.cached] + [physical[request.cached + ancestor] for ancestor in paths[node]])
        # A chain's says nothing.
        self.tail_starts.append(request.cached if request.is_tree else int(self.random.integers(0, request.num_slots)))

    def run(self, attention: Callable[..., Tensor], **changes: Any) -> Tensor:
        """[tokens, heads, head_dim] of the real tokens; the padding tokens' rows are asserted to be zeros."""
        nothing = [0] * self.padding
        integers = (
            *(self.tiles, self.positions + nothing, self.context_lens + nothing, self.slots + [-1] * self.padding),
            *(self.tail_starts, self.bits.view(np.int32), self.tables),
        )
        tensors = [torch.as_tensor(array, dtype=torch.int32) for array in integers]
        out = attention(self.q, self.keys, self.values, *tensors, block_tokens=self.block_tokens, **{**self.options, **changes})
        assert out.dtype == self.q.dtype and not out[-self.padding :].any()
        return out[: -self.padding]

    def expected(self, **changes: Any) -> Tensor:
        """Causal attention of each token over its root path, float64."""
        options = {**self.options, **changes}
        options.pop("num_splits", None)
        queries = self.q.double().numpy()
        keys, values = (cache[:, :, : self.head_dim].double().numpy() for cache in (self.keys, self.values))
        rows = [causal(queries[token], keys[path], values[path], **options) for token, path in enumerate(self.paths)]
        return torch.from_numpy(np.stack(rows))

    def assert_right(self, attention: Callable[..., Tensor], **changes: Any) -> None:
        tolerance = 1e-5 if self.q.dtype == torch.float32 else 4e-3
        torch.testing.assert_close(self.run(attention, **changes).double(), self.expected(**changes), atol=tolerance, rtol=tolerance)


def causal(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    *,
    scale: float,
    kv_heads: int,
    block_size: int,
    window: int | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> np.ndarray:
    """The last token of a text, query [heads, dim], over all of it, keys and values [length, kv_heads, dim]; [heads, dim]."""
    out = np.empty_like(query)
    first = 0 if window is None else max(0, len(keys) - window)
    for head in range(len(query)):
        kv_head = head // (len(query) // kv_heads)
        key_scale, value_scale = (1.0 if scales is None else float(scales[kv_head]) for scales in (k_scales, v_scales))
        scores = keys[first:, kv_head] @ query[head] * key_scale * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if slopes is not None:
            scores = scores + float(slopes[head]) * np.arange(first, len(keys))
        logits = scores if sinks is None else np.append(scores, float(sinks[head]))
        weights = np.exp(logits - logits.max())
        out[head] = (weights / weights.sum())[: len(scores)] @ values[first:, kv_head] * value_scale
    return out
