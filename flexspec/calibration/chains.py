"""Native programs of one operator over and over, as a compiled model has it: weights and caches are as cold as in a model.

Every call of the operator has weights, or a layer of the KV cache, of its own, more of them than caches hold, and reads what the call
before it wrote.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.batch import Batch, chain_batch
from flexspec.codegen.cpu.native import (
    GatePrologue,
    Matrix,
    NativeLibrary,
    NativeProgram,
    NormPrologue,
    PackedWeight,
    Rotary,
    padded_head_dim,
)
from flexspec.codegen.cpu.native.packing import PANEL
from flexspec.codegen.kv_storage import KVShape, KVStorage

_SEED = 0
_PATTERN = 1 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_TIMES_CACHE = 3
_WEIGHTS_MORE = 3
"""Times as much as that are weights: a virtual machine may have a share of a larger cache than it is told of, and addresses are translated
more slowly, the more of them there are."""
_USUAL_CACHE, _MOST_COLD = 32 << 20, 256 << 20
Work = Literal["plain", "norm", "gate and sum"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How programs run.

    Attributes:
        library: the kernels.
        dtype: of weights and caches.
        threads: of this rank.
        max_tokens: of a pass.
        cold_bytes: what is read before anything is read again.
    """

    library: NativeLibrary
    dtype: torch.dtype
    threads: int
    max_tokens: int
    cold_bytes: int

    def program(self) -> NativeProgram:
        """An empty program."""
        return NativeProgram(self.library, dtype=self.dtype, num_threads=self.threads)

    def matrix(self, columns: int) -> Matrix:
        """Activations."""
        return Matrix(buffer=filled((self.max_tokens, columns), torch.float32, 1.0), start=0, cols=columns)

    def cache(self, *, layers: int, slots: int, kv_heads: int, head_dim: int) -> KVStorage:
        """A KV cache with numbers in it."""
        padded = padded_head_dim(head_dim)
        shape = KVShape(num_layers=layers, num_kv_heads=kv_heads, head_dim=head_dim, padded_head_dim=padded, dtype=self.dtype)
        kv = KVStorage.of_requests(shape, slots)
        for numbers in (kv.keys, kv.values):
            numbers.copy_(filled(tuple(numbers.shape), self.dtype, 0.1))
        return kv


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A program and what it runs on.

    Attributes:
        program: of `calls` calls of an operator.
        calls: how many.
        kv: its KV cache.
        threads: that it runs in.
    """

    program: NativeProgram
    calls: int
    kv: KVStorage
    threads: int

    def passes(self, tokens: int, *, context: int = 0) -> Callable[[], None]:
        """What runs a pass over so many tokens of a request that follow so many cached ones."""
        batch = self.batch(tokens, context=context)
        return lambda: self.program.run(batch, self.kv)

    def batch(self, tokens: int, *, context: int = 0) -> Batch:
        """Such a pass's tokens."""
        return chain_batch(np.arange(tokens, dtype=np.int64), start=context, block_table=self.kv.block_table)


def linear_chain(setting: Setting, first: int, second: int, *, calls: int | None = None) -> Chain:
    """Linears from `first` features to `second` and back."""
    program, x, y = setting.program(), setting.matrix(first), setting.matrix(second)
    num_bytes = first * second * setting.dtype.itemsize
    calls = calls or 2 * max(2, -(-_WEIGHTS_MORE * setting.cold_bytes // num_bytes) // 2)
    for call in range(calls):
        source, out = (x, y) if call % 2 == 0 else (y, x)
        append_linear(program, setting, source, out)
    return Chain(
        threads=setting.threads, program=program, calls=calls, kv=setting.cache(layers=1, slots=setting.max_tokens, kv_heads=1, head_dim=16)
    )


def append_linear(program: NativeProgram, setting: Setting, source: Matrix, out: Matrix) -> None:
    """Append a linear with weights of its own; results stay near 1 however many follow each other."""
    weight = random_weight(source.cols, out.cols, setting.dtype)
    program.linear(x=source, weight=weight, bias=torch.ones(out.cols), out=out)


def fused_chain(setting: Setting, columns: int, out_columns: int, work: Work, *, calls: int = 64) -> Chain:
    """Linears over small weights that stay in caches, with what code generation moves into linears: norms, gates, sums."""
    program, x, up, y = setting.program(), setting.matrix(columns), setting.matrix(columns), setting.matrix(out_columns)
    weight = random_weight(columns, out_columns, setting.dtype)
    residual = setting.matrix(out_columns) if work == "gate and sum" else None
    prologue: NormPrologue | GatePrologue | None = None
    if work == "norm":
        prologue = NormPrologue(kind="rms", weight=torch.ones(columns), eps=1e-5)
    elif work == "gate and sum":
        prologue = GatePrologue(gate=x, up=up, activation="silu")
    for _ in range(calls):
        program.linear(
            x=None if isinstance(prologue, GatePrologue) else x,
            weight=weight,
            bias=torch.ones(out_columns),
            out=y,
            residual=residual,
            prologue=prologue,
        )
    return Chain(
        threads=setting.threads, program=program, calls=calls, kv=setting.cache(layers=1, slots=setting.max_tokens, kv_heads=1, head_dim=16)
    )


def attention_chain(setting: Setting, *, heads: int, kv_heads: int, head_dim: int, context: int) -> Chain:
    """Attention over `context` cached keys, rotary embeddings and the writing of keys and values included."""
    slots = context + setting.max_tokens
    per_layer = 2 * context * kv_heads * head_dim * setting.dtype.itemsize
    layers = max(2, -(-setting.cold_bytes // per_layer))
    program = setting.program()
    q, k, v = (setting.matrix(count * head_dim) for count in (heads, kv_heads, kv_heads))
    out = setting.matrix(heads * head_dim)
    rotary = Rotary(cos=setting.matrix(head_dim), sin=setting.matrix(head_dim), dim=head_dim)
    for layer in range(layers):
        program.tree_attention(
            q=q,
            k=k,
            v=v,
            out=out,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            layer=layer,
            scale=head_dim**-0.5,
            window=None,
            softcap=None,
            rotary=rotary,
        )
    return Chain(
        threads=setting.threads,
        program=program,
        calls=layers,
        kv=setting.cache(layers=layers, slots=slots, kv_heads=kv_heads, head_dim=head_dim),
    )


def embedding_chain(setting: Setting, columns: int) -> Chain:
    """Look-ups of tokens, each in a table of its own."""
    program, out = setting.program(), setting.matrix(columns)
    calls = max(2, setting.cold_bytes // (setting.max_tokens * columns * setting.dtype.itemsize))
    for _ in range(calls):
        program.embedding(table=filled((setting.max_tokens, columns), setting.dtype, 1.0), out=out)
    return Chain(
        threads=setting.threads, program=program, calls=calls, kv=setting.cache(layers=1, slots=setting.max_tokens, kv_heads=1, head_dim=16)
    )


def random_weight(in_features: int, out_features: int, dtype: torch.dtype) -> PackedWeight:
    """A linear's weight in the kernels' layout, of small numbers, in memory of its own."""
    group = 4 // dtype.itemsize
    panels, units = -(-out_features // PANEL), -(-in_features // group)
    data = filled((panels, units * PANEL * group), dtype, 0.01 / in_features).view(torch.int32).view(panels, units, PANEL)
    return PackedWeight(data=data, out_features=out_features, in_features=in_features)


def filled(size: tuple[int, ...], dtype: torch.dtype, scale: float) -> Tensor:
    """Uniform numbers of both signs, a repeated pattern: drawing all of them would take longer than what is measured."""
    count = prod(size)
    pattern = torch.rand(min(count, _PATTERN), generator=torch.Generator().manual_seed(_SEED)).sub_(0.5).mul_(2 * scale).to(dtype)
    return pattern.repeat(-(-count // len(pattern)))[:count].view(size)


def cold_bytes() -> int:
    """Several times what the last level of caches holds, within reason."""
    sizes = [_size(path.read_text()) for path in _CACHES.glob("index*/size")] if _CACHES.exists() else []
    return min(_TIMES_CACHE * max(sizes, default=_USUAL_CACHE), _MOST_COLD)


def _size(text: str) -> int:
    text = text.strip()
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)
