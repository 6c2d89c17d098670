"""What works and moves take in one pass on one kind of hardware."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.work import Move, Work


@dataclass(frozen=True, kw_only=True)
class PassPrice:
    """Prices of a pass.

    Attributes:
        times: of operators.
        collectives: between devices.
        group: the devices of the tensor-parallel group.
        requests: that share the pass.
        tokens: of each: the root and the drafts.
        context: keys in the cache of each.
    """

    times: OperatorTimes
    collectives: Collectives
    group: Sequence[int]
    requests: int
    tokens: int
    context: int

    def operator(self, work: Work) -> float:
        """Seconds of one device's work (equations 1 to 3)."""
        rows = self.requests * self.tokens
        if work.kind == "linear":
            return self.times.linear(rows, work.in_columns, work.out_columns, launches=work.launches)
        if work.kind == "attention":
            context = self.context if work.window is None else min(self.context, work.window)
            return self.times.attention(self.requests, self.tokens, context, work.heads, work.kv_heads, work.head_dim)
        if work.kind == "embedding":
            return self.times.embedding(rows, work.out_columns)
        return 0.0 if work.kind == "view" else self.times.rows(work.kind, rows, work.in_columns, work.out_columns)

    def move(self, move: Move) -> float:
        """Seconds of a parallel operator (equation 4)."""
        rows = self.requests * self.tokens
        num_bytes = rows * move.columns * self.times.activation_bytes
        if move.kind == "reduce":
            return self.collectives.all_reduce(self.group, num_bytes)
        if move.kind == "combine":
            return self.collectives.gather(self.group, num_bytes)
        return self.times.rows("elementwise", rows, move.columns, move.columns)
