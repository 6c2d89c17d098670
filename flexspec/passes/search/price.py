"""What works and moves take on one kind of hardware, in passes of several sizes at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.stages import Floats, Ints
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.work import Move, Work


@dataclass(frozen=True, kw_only=True, eq=False)
class PassPrice:
    """Prices of passes.

    Attributes:
        times: of operators.
        collectives: between devices.
        requests: [requests, 1] that share a pass.
        tokens: [1, sizes] of each: the root and the drafts.
        context: keys in the cache of each.
    """

    times: OperatorTimes
    collectives: Collectives
    requests: Ints
    tokens: Ints
    context: int

    @property
    def rows(self) -> Ints:
        """[requests, sizes] tokens of a pass."""
        return self.requests * self.tokens

    def operator(self, work: Work) -> Floats:
        """[requests, sizes] seconds of one device's work (equations 1 to 3)."""
        seconds: Any = 0.0
        if work.kind == "linear":
            seconds = self.times.linear(self.rows, work.in_columns, work.out_columns, launches=work.launches)
        elif work.kind == "experts":
            columns = work.in_columns + work.out_columns
            seconds = self.times.experts(self.rows, columns, num_experts=work.experts, top_k=work.top_k, weights=work.expert_weights)
        elif work.kind == "attention":
            context = self.context if work.window is None else min(self.context, work.window)
            seconds = self.times.attention(self.requests, self.tokens, context, work.heads, work.kv_heads, work.head_dim)
        elif work.kind == "embedding":
            seconds = self.times.embedding(self.rows, work.out_columns)
        elif work.kind != "view":
            seconds = self.times.rows(work.kind, self.rows, work.in_columns, work.out_columns)
        return np.asarray(seconds + np.zeros(self.rows.shape))

    def move(self, move: Move, group: Sequence[int]) -> Floats:
        """[requests, sizes] seconds of a parallel operator of a group (equation 4)."""
        num_bytes = self.rows * (move.columns * self.times.activation_bytes)
        if move.kind == "reduce":
            return np.asarray(self.collectives.all_reduce(group, num_bytes) + self._addition(group, num_bytes))
        if move.kind == "combine":
            return np.asarray(self.collectives.gather(group, num_bytes))
        return np.asarray(self.times.rows("elementwise", self.rows, move.columns, move.columns))

    def _addition(self, group: Sequence[int], num_bytes: Ints) -> Any:
        """Seconds of reading the gathered summands, which what comes next adds up; a measured all-reduce has it in its time."""
        if len(group) < 3 or self.collectives.is_measured("reduce", len(group)):
            return 0.0
        return self.times.seconds("elementwise", self.rows, 0.0, len(group) * num_bytes, launches=0)
