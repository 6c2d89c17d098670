"""What a pass of N tokens costs on this machine, measured before serving and refined while serving."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from flexspec.codegen.batch import Batch, chain_batch
from flexspec.codegen.compiled_model import CompiledModel, wait_for
from flexspec.codegen.kv_storage import KVStorage

_CONTEXTS = (64, 576)
"""Tokens before those that are timed: in all sizes, and once more in two, for what a longer context costs."""
_FEW, _MANY = 1, 16
_REPEATS = 5
_SHORTEST_S = 0.005
"""Passes too short for the clock and the noise are repeated until they take about this long together."""
_SCALE_RATE = 0.1
_SHAPE_RATE = 0.02
"""Shares of a new observation: the speed of the machine changes at once, the shape of the curve slowly."""
_REDRAW = 16
"""Corrections of the shape after which the curve is drawn anew: that costs 20 µs."""


@dataclass(frozen=True, kw_only=True)
class ContextCost:
    """What a longer context adds to a pass.

    Attributes:
        pass_s: seconds a token of context, whatever the size of the pass: the cache is read once.
        token_s: seconds a token of context for each token of the pass.
    """

    pass_s: float = 0.0
    token_s: float = 0.0


class StepCosts:
    """Seconds of a pass, by its number of tokens, a piecewise linear curve that never falls, and by their context.

    Args:
        seconds: of passes of some sizes, at least one, behind a context of 64 tokens.
        context: what a longer one adds.
    """

    def __init__(self, seconds: Mapping[int, float], context: ContextCost | None = None) -> None:
        assert seconds and min(seconds.values()) > 0, f"no costs: {seconds}"
        self._sizes = sorted(seconds)
        self._knots = np.maximum.accumulate([seconds[size] for size in self._sizes])
        self._context = context or ContextCost()
        self._scale = 1.0
        self._corrections = 0
        self._curve = self._interpolate()

    def seconds(self, tokens: int, context: float = _CONTEXTS[0]) -> float:
        """Of a pass of `tokens` tokens behind `context` others; the last known slope goes on beyond the largest size measured."""
        curve = self._curve
        if tokens < len(curve):
            seconds = curve[tokens]
        else:
            seconds = curve[-1] + (tokens - len(curve) + 1) * (curve[-1] - curve[-2])
        added = max(context - _CONTEXTS[0], 0.0) * (self._context.pass_s + tokens * self._context.token_s)
        return self._scale * (seconds + added)

    def observe(self, tokens: int, seconds: float, context: float = _CONTEXTS[0]) -> None:
        """A pass of `tokens` tokens behind `context` others took `seconds`; far outliers, a machine interrupted, count as near ones."""
        ratio = min(max(seconds / self.seconds(tokens, context), 0.5), 2.0)
        self._scale *= ratio**_SCALE_RATE
        above = min(bisect_left(self._sizes, tokens), len(self._sizes) - 1)
        below = max(above - 1, 0)
        span = self._sizes[above] - self._sizes[below]
        share = min((tokens - self._sizes[below]) / span, 1.0) if span else 1.0
        self._knots[below] *= ratio ** (_SHAPE_RATE * (1.0 - share))
        self._knots[above] *= ratio ** (_SHAPE_RATE * share)
        self._corrections += 1
        if self._corrections % _REDRAW == 0:
            np.maximum.accumulate(self._knots, out=self._knots)
            self._curve = self._interpolate()

    def table(self) -> dict[int, float]:
        """Seconds by the sizes that are measured."""
        return {size: self.seconds(size) for size in self._sizes}

    def _interpolate(self) -> list[float]:
        sizes = np.arange(self._sizes[-1] + 1)
        curve: list[float] = np.interp(sizes, self._sizes, self._knots).tolist()
        return curve


def measure_step_costs(model: CompiledModel, *, most: int) -> StepCosts:
    """Time passes of 1, 2, 3, 4, 6, 8, 12, … up to `most` tokens behind a short context, and some behind a longer one."""
    most = min(most, model.max_pass_tokens)
    sizes = sorted({min(size, most) for power in range(most.bit_length() + 1) for size in (1 << power, 3 << power >> 1)})
    room = max(_CONTEXTS) if model.max_positions is None else max(model.max_positions - most, 0)
    short, long = (min(context, room) for context in _CONTEXTS)
    if model.max_positions is not None:
        sizes = [size for size in sizes if short + size <= model.max_positions]
    ends = [max((size for size in sizes if size <= limit), default=sizes[0]) for limit in (_FEW, _MANY)]
    timed = [(size, short) for size in sizes] + [(size, long) for size in ends]
    kv = KVStorage.of_requests(model.kv_shape, long + most)
    for start in range(0, long, model.max_pass_tokens):
        model.forward(_batch(kv, min(model.max_pass_tokens, long - start), start), kv)
    batches = [_batch(kv, size, context) for size, context in timed]
    # A machine may be slow for a while: sizes take turns, and of each the fastest counts.
    rounds = [[_time(model, kv, batch) for batch in batches] for _ in range(1 + _REPEATS)]
    seconds = dict(zip(timed, np.maximum(np.min(rounds[1:], axis=0), 1e-9).tolist(), strict=True))
    few, many = ((seconds[size, long] - seconds[size, short]) / max(long - short, 1) for size in ends)
    token_s = max(many - few, 0.0) / max(ends[1] - ends[0], 1)
    cost = ContextCost(pass_s=max(few - ends[0] * token_s, 0.0), token_s=token_s)
    return StepCosts({size: seconds[size, short] for size in sizes}, cost)


def _batch(kv: KVStorage, size: int, context: int) -> Batch:
    return chain_batch(np.zeros(size, dtype=np.int64), start=context, block_table=kv.block_table)


def _time(model: CompiledModel, kv: KVStorage, batch: Batch) -> float:
    times, began = 0, perf_counter()
    while times == 0 or (times < 4 and perf_counter() - began < _SHORTEST_S):
        wait_for(model.forward(batch, kv))
        times += 1
    return (perf_counter() - began) / times
