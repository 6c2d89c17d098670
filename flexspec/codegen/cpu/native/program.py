"""A whole forward pass as one native call: operators appended in order, then run on batches."""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.codegen.batch import Batch
from flexspec.codegen.cpu.native import structures as c
from flexspec.codegen.cpu.native.arguments import BatchArguments, CacheArguments
from flexspec.codegen.cpu.native.expert_packing import PackedExperts
from flexspec.codegen.cpu.native.library import NativeLibrary
from flexspec.codegen.cpu.native.operands import GatePrologue, Matrix, NormPrologue, Rotary
from flexspec.codegen.cpu.native.packing import PackedWeight
from flexspec.codegen.kv_storage import KVStorage

Rows = Literal["tokens", "outputs"]
NO_MATRIX = c.CMatrix(None, 0)
VECTOR_PADDING = 32


class NativeProgram:
    """Operators over float32 buffers that the caller owns; weights and KV cache are in `dtype`.

    An operator's rows are the pass's "tokens" (N of them) or its "outputs" (M of them, after `gather_rows`). A row's
    result is bitwise the same whatever rows share the pass. An operator may write where it reads only if rows and
    columns map one to one. Programs that run on the same batches may share the `arguments` that a pass is handed over by.
    """

    def __init__(self, library: NativeLibrary, *, dtype: torch.dtype, num_threads: int, arguments: BatchArguments | None = None) -> None:
        assert dtype in (torch.float32, torch.bfloat16) and num_threads >= 1
        self.dtype = dtype
        self._library = library
        self._handle = library.create(dtype == torch.bfloat16, num_threads)
        self._finalizer = weakref.finalize(self, library.destroy, self._handle)
        self._kept: list[Tensor] = []
        self._max_rows: dict[str, int] = {}
        self._layers: set[int] = set()
        self._batch = arguments or BatchArguments()
        self._cache: CacheArguments | None = None

    def embedding(self, *, table: Tensor, out: Matrix) -> None:
        """out[i] = table[token_ids[i]]; table [vocab, cols] in the program's dtype."""
        assert table.dtype == self.dtype and table.is_contiguous() and table.shape[1] == out.cols
        self._append("embedding", c.CEmbedding(out=self._matrix(out, "tokens"), table=self._keep(table), cols=out.cols))

    def linear(
        self,
        *,
        x: Matrix | None,
        weight: PackedWeight,
        bias: Tensor | None,
        out: Matrix,
        residual: Matrix | None = None,
        activation: str | None = None,
        prologue: NormPrologue | GatePrologue | None = None,
        rows: Rows = "tokens",
    ) -> None:
        """out = residual + activation(prologue(x) W^T + bias); with a GatePrologue x is None."""
        gate = prologue if isinstance(prologue, GatePrologue) else None
        norm = prologue if isinstance(prologue, NormPrologue) else None
        source = gate.gate if gate else x
        assert source is not None and (gate is None or x is None)
        assert source.cols == weight.in_features and out.cols == weight.out_features
        assert gate is None or gate.up.cols == weight.in_features
        assert residual is None or residual.cols == out.cols
        arguments = c.CLinear(
            x=self._matrix(source, rows),
            up=self._matrix(gate.up, rows) if gate else NO_MATRIX,
            out=self._matrix(out, rows),
            residual=self._matrix(residual, rows) if residual else NO_MATRIX,
            weight=self._keep(weight.data),
            bias=self._vector(bias, out.cols),
            norm_weight=self._vector(norm.weight, source.cols) if norm else None,
            norm_bias=self._vector(norm.bias, source.cols) if norm else None,
            eps=norm.eps if norm else 0.0,
            in_features=weight.in_features,
            out_features=weight.out_features,
            activation=c.ACTIVATIONS[activation],
            prologue=c.PROLOGUES["gate" if gate else norm.kind if norm else None],
            prologue_activation=c.ACTIVATIONS[gate.activation if gate else None],
            rows=c.ROWS[rows],
        )
        self._append("linear", arguments)

    def rms_norm(self, *, x: Matrix, weight: Tensor, eps: float, out: Matrix, groups: int = 1, rows: Rows = "tokens") -> None:
        """RMSNorm over each of `groups` equal column ranges; weight [cols / groups]."""
        self._normalize("rms", x=x, weight=weight, bias=None, eps=eps, out=out, groups=groups, rows=rows)

    def layer_norm(
        self, *, x: Matrix, weight: Tensor, bias: Tensor | None, eps: float, out: Matrix, groups: int = 1, rows: Rows = "tokens"
    ) -> None:
        """LayerNorm over each of `groups` equal column ranges; weight and bias [cols / groups]."""
        self._normalize("layer", x=x, weight=weight, bias=bias, eps=eps, out=out, groups=groups, rows=rows)

    def tree_attention(
        self,
        *,
        q: Matrix,
        k: Matrix,
        v: Matrix,
        out: Matrix,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        layer: int,
        scale: float,
        window: int | None,
        softcap: float | None,
        rotary: Rotary | None,
        slopes: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Write k (after rotary) and v into the cache, then attend to context and tail ancestors.

        q, out: [N, num_heads * head_dim]; k, v: [N, num_kv_heads * head_dim]. The key at logical index j is seen if
        j > position - window. Scores are scaled, then capped: softcap * tanh(s / softcap);
        then `slopes` [num_heads], times the key's index, is added. `sinks` [num_heads] are further logits, which give nothing.
        """
        assert num_heads % num_kv_heads == 0 and q.cols == out.cols == num_heads * head_dim and k.cols == v.cols == num_kv_heads * head_dim
        assert rotary is None or (rotary.dim % 2 == 0 and rotary.dim <= head_dim and rotary.cos.cols == rotary.sin.cols == rotary.dim)
        assert (window is None or window > 0) and (softcap is None or softcap > 0)
        self._layers.add(layer)
        arguments = c.CAttention(
            q=self._matrix(q, "tokens"),
            k=self._matrix(k, "tokens"),
            v=self._matrix(v, "tokens"),
            out=self._matrix(out, "tokens"),
            cos=self._matrix(rotary.cos, "tokens") if rotary else NO_MATRIX,
            sin=self._matrix(rotary.sin, "tokens") if rotary else NO_MATRIX,
            slopes=self._vector(slopes, num_heads),
            sinks=self._vector(sinks, num_heads),
            scale=scale,
            softcap=softcap or 0.0,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            layer=layer,
            window=window or 0,
            rotary_dim=rotary.dim if rotary else 0,
            interleaved=rotary is not None and rotary.interleaved,
        )
        self._append("attention", arguments)

    def gate(self, *, gate: Matrix, up: Matrix, activation: str, out: Matrix, rows: Rows = "tokens") -> None:
        """out = activation(gate) * up."""
        self._map("gate", a=gate, b=up, out=out, rows=rows, activation=activation)

    def activation(self, *, x: Matrix, kind: str, out: Matrix, rows: Rows = "tokens") -> None:
        """out = kind(x)."""
        self._map("activation", a=x, out=out, rows=rows, activation=kind)

    def add(self, *, a: Matrix, b: Matrix | Tensor, out: Matrix, rows: Rows = "tokens") -> None:
        """out = a + b; b may have one column for all, or be a vector for all rows."""
        self._map("add", a=a, b=b, out=out, rows=rows)

    def mul(self, *, a: Matrix, b: Matrix | Tensor, out: Matrix, rows: Rows = "tokens") -> None:
        """out = a * b; b may have one column for all, or be a vector for all rows."""
        self._map("mul", a=a, b=b, out=out, rows=rows)

    def sub(self, *, a: Matrix, b: Matrix | Tensor, out: Matrix, rows: Rows = "tokens") -> None:
        """out = a - b; b as that of `add`."""
        self._map("sub", a=a, b=b, out=out, rows=rows)

    def div(self, *, a: Matrix, b: Matrix | Tensor, out: Matrix, rows: Rows = "tokens") -> None:
        """out = a / b; b as that of `add`."""
        self._map("div", a=a, b=b, out=out, rows=rows)

    def greater(self, *, x: Matrix, value: float, out: Matrix, rows: Rows = "tokens") -> None:
        """out = 1 where x > value, else 0."""
        self._map("greater", a=x, out=out, rows=rows, scalar=value)

    def where(self, *, condition: Matrix, a: Matrix, b: Matrix, out: Matrix, rows: Rows = "tokens") -> None:
        """out = a where the condition is not 0, else b."""
        self._map("where", a=condition, b=a, other=b, out=out, rows=rows)

    def add_scalar(self, *, x: Matrix, value: float, out: Matrix, rows: Rows = "tokens") -> None:
        """out = x + value."""
        self._map("add_scalar", a=x, out=out, rows=rows, scalar=value)

    def mul_scalar(self, *, x: Matrix, value: float, out: Matrix, rows: Rows = "tokens") -> None:
        """out = x * value."""
        self._map("mul_scalar", a=x, out=out, rows=rows, scalar=value)

    def clamp(self, *, x: Matrix, low: float, high: float, out: Matrix, rows: Rows = "tokens") -> None:
        """out = x, limited to [low, high]."""
        self._map("clamp", a=x, out=out, rows=rows, scalar=low, high=high)

    def copy(self, *, x: Matrix, out: Matrix, rows: Rows = "tokens") -> None:
        """out = x."""
        self._map("copy", a=x, out=out, rows=rows)

    def top_experts(self, *, logits: Matrix, top_k: int, normalised: bool, out: Matrix, rows: Rows = "tokens") -> None:
        """The `top_k` largest logits' softmax, over all or with `normalised` over these, then their columns' numbers; out [N, 2 top_k]."""
        assert 1 <= top_k <= logits.cols <= 1024 and out.cols == 2 * top_k
        weights = replace(out, cols=top_k)
        arguments = c.CTopExperts(
            logits=self._matrix(logits, rows),
            weights=self._matrix(weights, rows),
            ids=self._matrix(replace(weights, start=out.start + top_k), rows),
            num_experts=logits.cols,
            top_k=top_k,
            normalised=normalised,
            rows=c.ROWS[rows],
        )
        self._append("top_experts", arguments)

    def routed_experts(
        self,
        *,
        x: Matrix,
        expert_ids: Matrix,
        expert_weights: Matrix,
        experts: PackedExperts,
        activation: str,
        constants: Sequence[float],
        out: Matrix,
        rows: Rows = "tokens",
    ) -> None:
        """A row's sum over its experts, each times its weight; x, out: [N, hidden]; ids and weights: [N, top_k]."""
        assert x.cols == out.cols == experts.hidden and expert_ids.cols == expert_weights.cols
        alpha, limit = constants or (0.0, 0.0)
        weights = {name: getattr(experts, name) for name in ("gate_up", "down", "gate_up_bias", "down_bias")}
        arguments = c.CExperts(
            x=self._matrix(x, rows),
            ids=self._matrix(expert_ids, rows),
            weights=self._matrix(expert_weights, rows),
            out=self._matrix(out, rows),
            **{name: None if weight is None else self._keep(weight) for name, weight in weights.items()},
            alpha=alpha,
            limit=limit,
            num_experts=experts.num_experts,
            top_k=expert_ids.cols,
            hidden=experts.hidden,
            inner=experts.inner,
            activation=c.ACTIVATIONS[activation],
            rows=c.ROWS[rows],
        )
        self._append("experts", arguments)

    def gather_rows(self, *, x: Matrix, out: Matrix) -> None:
        """out[i] = x[output_rows[i]]."""
        assert x.cols == out.cols
        self._append("gather", c.CGather(x=self._matrix(x, "tokens"), out=self._matrix(out, "outputs"), cols=x.cols))

    def run(self, batch: Batch, kv: KVStorage) -> None:
        """Run all operators on a batch; results lie in the buffers.

        Raises:
            MemoryError: no memory for the pass's scratch.
        """
        self._batch.fill(batch)
        self.run_filled(batch, kv)

    def run_filled(self, batch: Batch, kv: KVStorage) -> None:
        """As `run`, where the arguments, which other programs share, were filled with the batch already."""
        assert batch.num_tokens <= self._max_rows.get("tokens", batch.num_tokens), "more tokens than the buffers hold"
        assert len(batch.output_rows) <= self._max_rows.get("outputs", len(batch.output_rows)), "more outputs than the buffers hold"
        if self._cache is None or not self._cache.is_for(kv):
            assert kv.shape.dtype == self.dtype and all(layer < kv.shape.num_layers for layer in self._layers)
            self._cache = CacheArguments(kv)
        if self._library.run(self._handle, self._batch.reference, self._cache.reference):
            raise MemoryError(f"no memory for the scratch of a pass of {batch.num_tokens} tokens")

    def _normalize(
        self, kind: str, *, x: Matrix, weight: Tensor, bias: Tensor | None, eps: float, out: Matrix, groups: int, rows: Rows
    ) -> None:
        assert x.cols == out.cols and x.cols % groups == 0
        arguments = c.CNormalize(
            x=self._matrix(x, rows),
            out=self._matrix(out, rows),
            weight=self._vector(weight, x.cols // groups),
            bias=self._vector(bias, x.cols // groups),
            eps=eps,
            kind=c.NORMS[kind],
            cols=x.cols,
            groups=groups,
            rows=c.ROWS[rows],
        )
        self._append("normalize", arguments)

    def _map(
        self,
        kind: str,
        *,
        a: Matrix,
        out: Matrix,
        rows: Rows,
        b: Matrix | Tensor | None = None,
        other: Matrix | None = None,
        activation: str | None = None,
        scalar: float = 0.0,
        high: float = 0.0,
    ) -> None:
        b_cols = b.cols if isinstance(b, Matrix) else a.cols
        assert a.cols == out.cols and b_cols in (1, a.cols) and (other is None or other.cols == a.cols)
        arguments = c.CMap(
            a=self._matrix(a, rows),
            b=self._row(b, a.cols) if isinstance(b, Tensor) else self._matrix(b, rows) if b else NO_MATRIX,
            c=self._matrix(other, rows) if other else NO_MATRIX,
            out=self._matrix(out, rows),
            scalar=scalar,
            high=high,
            kind=c.ELEMENTWISE[kind],
            activation=c.ACTIVATIONS[activation],
            cols=a.cols,
            b_cols=b_cols,
            rows=c.ROWS[rows],
        )
        self._append("map", arguments)

    def _append(self, kind: str, arguments: ctypes.Structure) -> None:
        self._library.append[kind](self._handle, ctypes.byref(arguments))

    def _matrix(self, matrix: Matrix, rows: Rows) -> c.CMatrix:
        self._max_rows[rows] = min(self._max_rows.get(rows, matrix.max_rows), matrix.max_rows)
        self._kept.append(matrix.buffer)
        return c.CMatrix(matrix.buffer.data_ptr() + matrix.start * matrix.buffer.element_size(), matrix.buffer.stride(0))

    def _row(self, vector: Tensor, cols: int) -> c.CMatrix:
        """A matrix all of whose rows are one vector."""
        return c.CMatrix(self._vector(vector.reshape(-1), cols), 0)

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _vector(self, vector: Tensor | None, length: int) -> int | None:
        """A float32 copy, padded with zeros so that kernels load whole vectors."""
        if vector is None:
            return None
        assert vector.shape == (length,)
        return self._keep(F.pad(vector.detach().float(), (0, -length % VECTOR_PADDING)).contiguous())
