"""Shared by the tests of the native executor: batches of random trees, and a small model built of its operators."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from flexspec.codegen.batch import Batch, chain_batch
from flexspec.codegen.cpu.native import (
    GatePrologue,
    Matrix,
    NativeLibrary,
    NativeProgram,
    NormPrologue,
    Rotary,
    pack_linear,
    padded_head_dim,
)
from flexspec.codegen.kv_storage import KVShape, KVStorage

DTYPES = [torch.float32, torch.bfloat16]
ACTIVATIONS = {
    None: lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu_squared": lambda x: F.relu(x).square(),
}


def columns(buffer: torch.Tensor, start: int = 0, cols: int | None = None) -> Matrix:
    return Matrix(buffer=buffer, start=start, cols=buffer.shape[1] - start if cols is None else cols)


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).float()


def run(program: NativeProgram, num_tokens: int, output_rows: torch.Tensor | None = None) -> None:
    kv = KVStorage(
        KVShape(num_layers=1, num_kv_heads=1, head_dim=16, padded_head_dim=16, dtype=program.dtype), num_blocks=1, block_size=512
    )
    rows = None if output_rows is None else output_rows.int().numpy()
    program.run(chain_batch(torch.arange(num_tokens).numpy(), output_rows=rows), kv)


@dataclass(frozen=True)
class Request:
    """Committed tokens, then tree nodes: `parents[i]` is the parent node of node i, or -1."""

    tokens: Sequence[int]
    context: int = 0
    parents: Sequence[int] = ()


def path(request: Request, node: int) -> list[int]:
    nodes = [node]
    while request.parents[nodes[0]] >= 0:
        nodes.insert(0, request.parents[nodes[0]])
    return nodes


def batch_of(requests: Sequence[Request], block_tables: np.ndarray) -> Batch:
    """The pass over every request's tokens after `context`: tree nodes if it has parents, else a chain."""
    width = max((len(r.parents) + 31) // 32 for r in requests)
    ids, positions, rows, slots, contexts, bits = [], [], [], [], [], []
    for row, r in enumerate(requests):
        for i, token in enumerate(r.tokens):
            ids.append(token)
            rows.append(row)
            slots.append(r.context + i)
            words = np.zeros(width, np.uint32)
            if r.parents:
                nodes = path(r, i)
                for node in nodes:
                    words[node // 32] |= np.uint32(1 << node % 32)
                contexts.append(r.context)
                positions.append(r.context + len(nodes) - 1)
            else:
                contexts.append(r.context + i + 1)
                positions.append(r.context + i)
            bits.append(words.view(np.int32))
    return Batch(
        token_ids=np.array(ids, np.int64),
        positions=np.array(positions, np.int64),
        request_rows=np.array(rows, np.int32),
        slots=np.array(slots, np.int32),
        context_lens=np.array(contexts, np.int32),
        tail_starts=np.array([r.context for r in requests], np.int32),
        tail_bits=np.stack(bits).reshape(len(ids), width),
        block_tables=block_tables,
        output_rows=np.arange(len(ids), dtype=np.int32),
    )


class SmallModel:
    """Two decoder layers with odd sizes; `run` fills rotary tables as a compiled model does."""

    def __init__(
        self,
        library: NativeLibrary,
        dtype: torch.dtype,
        *,
        num_threads: int,
        window: int | None = None,
        sinks: bool = False,
        max_rows: int = 256,
    ) -> None:
        torch.manual_seed(0)
        heads, kv_heads, dim, mlp, vocab, hidden = 6, 2, 24, 150, 101, 70
        self.vocab, self.dim = vocab, dim
        q_cols, kv_cols = heads * dim, kv_heads * dim

        def buffer(width: int) -> torch.Tensor:
            return torch.zeros(max_rows, width)

        h, qkv, attended, gate_up = buffer(hidden), buffer(q_cols + 2 * kv_cols), buffer(q_cols), buffer(2 * mlp)
        self.logits = buffer(vocab)
        self.cos, self.sin = buffer(dim), buffer(dim)
        p = self.program = NativeProgram(library, dtype=dtype, num_threads=num_threads)

        def weight(out_features: int, in_features: int):
            return pack_linear(library, torch.randn(out_features, in_features) / in_features**0.5, dtype)

        def norm() -> NormPrologue:
            return NormPrologue(kind="rms", weight=torch.rand(hidden) + 0.5, eps=1e-5)

        p.embedding(table=torch.randn(vocab, hidden).to(dtype), out=columns(h))
        for layer in range(2):
            p.linear(x=columns(h), weight=weight(q_cols + 2 * kv_cols, hidden), bias=torch.randn(q_cols + 2 * kv_cols) / 9,
                     out=columns(qkv), prologue=norm())  # fmt: skip
            p.tree_attention(
                q=columns(qkv, 0, q_cols),
                k=columns(qkv, q_cols, kv_cols),
                v=columns(qkv, q_cols + kv_cols),
                out=columns(attended),
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=dim,
                layer=layer,
                scale=dim**-0.5,
                window=window,
                softcap=None,
                rotary=Rotary(cos=columns(self.cos), sin=columns(self.sin), dim=dim),
                sinks=torch.linspace(-1, 3, heads) if sinks else None,
            )
            p.linear(x=columns(attended), weight=weight(hidden, q_cols), bias=None, out=columns(h), residual=columns(h))
            p.linear(x=columns(h), weight=weight(2 * mlp, hidden), bias=None, out=columns(gate_up), prologue=norm())
            gated = GatePrologue(gate=columns(gate_up, 0, mlp), up=columns(gate_up, mlp), activation="silu")
            p.linear(x=None, weight=weight(hidden, mlp), bias=None, out=columns(h), residual=columns(h), prologue=gated)
        final = buffer(hidden)
        p.gather_rows(x=columns(h), out=columns(final))
        p.linear(x=columns(final), weight=weight(vocab, hidden), bias=None, out=columns(self.logits), prologue=norm(), rows="outputs")
        self.kv_shape = KVShape(num_layers=2, num_kv_heads=kv_heads, head_dim=dim, padded_head_dim=padded_head_dim(dim), dtype=dtype)

    def run(self, batch: Batch, kv: KVStorage) -> torch.Tensor:
        """Logits [M, vocab]."""
        angles = torch.from_numpy(batch.positions)[:, None] / 100.0 ** (torch.arange(self.dim // 2) * 2 / self.dim)
        angles = torch.cat([angles, angles], 1).float()
        self.cos[: len(angles)] = angles.cos()
        self.sin[: len(angles)] = angles.sin()
        self.program.run(batch, kv)
        return self.logits[: len(batch.output_rows)].clone()

    def chains(self, texts: Sequence[Sequence[int]], chunk: int, *, block_size: int = 256) -> list[torch.Tensor]:
        """Logits of all tokens of every text, prefilled together in chunks of `chunk` tokens."""
        blocks = -(-max(map(len, texts)) // block_size)
        kv = KVStorage(self.kv_shape, num_blocks=blocks * len(texts), block_size=block_size)
        tables = np.random.default_rng(1).permutation(blocks * len(texts)).astype(np.int32).reshape(len(texts), blocks)
        out: list[list[torch.Tensor]] = [[] for _ in texts]
        for start in range(0, max(map(len, texts)), chunk):
            live = [i for i, text in enumerate(texts) if len(text) > start]
            requests = [Request(texts[i][start : start + chunk], start) for i in live]
            logits = self.run(batch_of(requests, np.ascontiguousarray(tables[live])), kv)
            for i, part in zip(live, logits.split([len(r.tokens) for r in requests]), strict=True):
                out[i].append(part)
        return [torch.cat(parts) for parts in out]
