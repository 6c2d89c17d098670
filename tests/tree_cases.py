"""Random token trees of several requests, and attention over each node's root path by definition."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TreeCase:
    """A pass over the trees of several requests whose contexts are already cached.

    `paths` holds, for each token, the rows of `context_*` and of the pass that it sees, in path order.
    """

    positions: Tensor
    request_rows: Tensor
    slots: Tensor
    context_lens: Tensor
    tail_starts: Tensor
    tail_bits: Tensor
    block_tables: Tensor
    block_size: int
    num_blocks: int
    ancestors: list[list[int]]  # of each token, the rows of this pass on its root path, itself included
    requests: list[tuple[int, range]]  # context length, rows of the pass

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    def batch_arguments(self) -> tuple[Tensor | int, ...]:
        """The operator's arguments from `positions` to `block_size`."""
        tensors = (self.positions, self.request_rows, self.slots, self.context_lens, self.tail_starts, self.tail_bits, self.block_tables)
        return (*tensors, self.block_size)


def tree_case(seed: int, *, contexts: tuple[int, ...] = (5, 0, 11), nodes: tuple[int, ...] = (7, 4, 40), block_size: int = 4) -> TreeCase:
    """Random trees over `contexts` committed slots each, their blocks scattered over the cache."""
    random = np.random.default_rng(seed)
    blocks = [-(-(context + count) // block_size) for context, count in zip(contexts, nodes, strict=True)]
    order = random.permutation(sum(blocks))
    tables = np.zeros((len(contexts), max(blocks)), dtype=np.int32)
    words = -(-max(nodes) // 32)
    bits = np.zeros((sum(nodes), words), dtype=np.uint32)
    positions, slots, ancestors, requests, first = [], [], [], [], 0
    for row, (context, count) in enumerate(zip(contexts, nodes, strict=True)):
        start = sum(blocks[:row])
        tables[row, : blocks[row]] = order[start : start + blocks[row]]
        paths: list[list[int]] = []
        for node in range(count):
            parent = int(random.integers(max(-1, node - 5), node))
            paths.append([*(paths[parent] if parent >= 0 else []), node])
            for ancestor in paths[node]:
                bits[first + node, ancestor // 32] |= np.uint32(1 << (ancestor % 32))
            positions.append(context + len(paths[node]) - 1)
            slots.append(context + node)
        ancestors += [[first + node for node in path] for path in paths]
        requests.append((context, range(first, first + count)))
        first += count
    return TreeCase(
        positions=torch.tensor(positions),
        request_rows=torch.from_numpy(np.repeat(np.arange(len(contexts), dtype=np.int32), nodes)),
        slots=torch.tensor(slots, dtype=torch.int32),
        context_lens=torch.from_numpy(np.repeat(np.array(contexts, dtype=np.int32), nodes)),
        tail_starts=torch.tensor(contexts, dtype=torch.int32),
        tail_bits=torch.from_numpy(bits.view(np.int32)),
        block_tables=torch.from_numpy(tables),
        block_size=block_size,
        num_blocks=sum(blocks),
        ancestors=ancestors,
        requests=requests,
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attention of one query [heads, dim] over all of k, v [seen, kv_heads, dim], the last `window` if given; by definition."""
    heads, kv_heads = q.shape[0], k.shape[1]
    first = 0 if window is None else max(0, len(k) - window)
    out = torch.empty(heads, v.shape[-1], dtype=torch.float64)
    for head in range(heads):
        kv_head = head * kv_heads // heads
        scores = [float(q[head].double() @ k[j, kv_head].double()) * scale for j in range(first, len(k))]
        if softcap is not None:
            scores = [softcap * np.tanh(score / softcap) for score in scores]
        if slopes is not None:
            scores = [score + float(slopes[head]) * (first + j) for j, score in enumerate(scores)]
        weights = np.exp(np.array(scores))
        total = weights.sum() + (0.0 if sinks is None else np.exp(float(sinks[head])))
        out[head] = torch.from_numpy(weights / total) @ v[first:, kv_head].double()
    return out


def turn(x: Tensor, positions: Tensor, *, rotary_dim: int) -> Tensor:
    """Rotary embedding of x [tokens, heads, dim]: element i of the first half and of the second are one complex number."""
    half = rotary_dim // 2
    angles = rotary_angles(positions, rotary_dim)
    complex_x = (
        torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double()) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    return torch.cat([complex_x.real, complex_x.imag, x[..., rotary_dim:].double()], dim=-1).float()


def rotary_angles(positions: Tensor, rotary_dim: int) -> Tensor:
    """[tokens, rotary_dim / 2]"""
    return positions.double()[:, None] / 10.0 ** (torch.arange(rotary_dim // 2, dtype=torch.float64) / 2)


def rotary_tables(positions: Tensor, rotary_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin, [tokens, rotary_dim], as the operators take them."""
    angles = rotary_angles(positions, rotary_dim).float()
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()
