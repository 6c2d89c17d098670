"""What a compiled model consists of, for `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.api.lower import Compilation
from flexspec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model runs.

    Attributes:
        strategy: the strategy in force, defaults filled in.
        llm: the large model.
        ssms: the draft models.
        kv_bytes: memory of the large model's KV cache, at most.
        ssm_kv_bytes: memory of the draft models' KV caches, at most.
    """

    strategy: Strategy
    llm: Compilation
    ssms: Sequence[Compilation]
    kv_bytes: int
    ssm_kv_bytes: int

    def __str__(self) -> str:
        strategy = self.strategy
        lines = [
            f"strategy   {strategy.dtype}, tree {strategy.tree}, verifier {strategy.verifier}, "
            f"batch up to {strategy.max_batch}, {strategy.max_len} tokens a request, passes of {list(strategy.buckets)} tokens warmed up",
            f"drafters   {', '.join(strategy.drafters) or 'none'}",
            f"memory     KV cache at most {_megabytes(self.kv_bytes)}, of SSMs {_megabytes(self.ssm_kv_bytes)}{self._cache_dtype()}",
        ]
        for role, compilation in [("llm", self.llm), *(("ssm", ssm) for ssm in self.ssms)]:
            lines += ["", *_describe(role, compilation)]
        return "\n".join(lines)

    def _cache_dtype(self) -> str:
        name = str(self.llm.model.kv_shape.dtype).removeprefix("torch.")
        return "" if name == self.strategy.dtype else f", in {name}"


def _describe(role: str, compilation: Compilation) -> list[str]:
    lowering = compilation.model.lowering
    cost = compilation.cost
    why = f" (not cpu-native: {lowering.reason})" if lowering.reason else ""
    lines = [
        f"{role} {compilation.name}: {cost.parameters / 1e6:.1f} M parameters, {cost.linear_flops / 1e9:.3f} GFLOP a token "
        f"and {cost.attention_flops_per_key / 1e3:.1f} kFLOP a key seen",
        f"  target          {lowering.target}{why}",
        f"  weights         {_megabytes(lowering.weight_bytes)}, activations {_megabytes(lowering.workspace_bytes)}",
        f"  row invariance  {compilation.row_invariance}",
        "  matched         "
        + ", ".join(f"{note.name} {note.matches}" + (f" of {note.expected}" if note.expected else "") for note in compilation.notes),
    ]
    lines += [f"  {operator:<38} {implementation}" for operator, implementation in sorted(lowering.implementations.items())]
    return lines


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
