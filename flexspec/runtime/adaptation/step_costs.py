"""What a pass of N tokens costs on this machine, measured before serving and refined while serving."""

from bisect import bisect_left
from collections.abc import Mapping
from time import perf_counter

import numpy as np

from flexspec.codegen.batch import Batch, chain_batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage

_CONTEXT = 64
"""Tokens before those that are timed."""
_REPEATS = 7
_SHORTEST_S = 0.01
"""Passes too short for the clock and the noise are repeated until they take this long together."""
_SCALE_RATE = 0.1
_SHAPE_RATE = 0.02
"""Shares of a new observation: the speed of the machine changes at once, the shape of the curve slowly."""

_REDRAW = 16
"""Corrections of the shape after which the curve is drawn anew: that costs 20 µs."""


class StepCosts:
    """Seconds of a pass, by its number of tokens: a piecewise linear curve that never falls.

    Args:
        seconds: of passes of some sizes, at least one.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        assert seconds and min(seconds.values()) > 0, f"no costs: {seconds}"
        self._sizes = sorted(seconds)
        self._knots = np.maximum.accumulate([seconds[size] for size in self._sizes])
        self._scale = 1.0
        self._corrections = 0
        self._curve = self._interpolate()

    def seconds(self, tokens: int) -> float:
        """Of a pass of `tokens` tokens; the last known slope goes on beyond the largest size measured."""
        curve = self._curve
        if tokens < len(curve):
            return self._scale * curve[tokens]
        slope = curve[-1] - curve[-2]
        return self._scale * (curve[-1] + (tokens - len(curve) + 1) * slope)

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass of `tokens` tokens took `seconds`; far outliers, a machine interrupted, count as near ones."""
        ratio = min(max(seconds / self.seconds(tokens), 0.5), 2.0)
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
    """Time passes of 1, 2, 4, … up to `most` tokens behind a short context, on a cache of their own."""
    most = min(most, model.max_pass_tokens)
    sizes = sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})
    context = _CONTEXT if model.max_positions is None else max(min(_CONTEXT, model.max_positions - most), 0)
    if model.max_positions is not None:
        sizes = [size for size in sizes if context + size <= model.max_positions]
    kv = KVStorage(model.kv_shape, num_blocks=1, block_size=context + most)
    tokens = np.zeros(context + most, dtype=np.int64)
    for start in range(0, context, model.max_pass_tokens):
        model.forward(chain_batch(tokens[start : min(start + model.max_pass_tokens, context)], start=start), kv)
    batches = [chain_batch(tokens[:size], start=context) for size in sizes]
    # A machine may be slow for a while: sizes take turns, and of each the fastest counts.
    rounds = [[_time(model, kv, batch) for batch in batches] for _ in range(1 + _REPEATS)]
    fastest = np.min(rounds[1:], axis=0).tolist()
    return StepCosts({size: max(seconds, 1e-9) for size, seconds in zip(sizes, fastest, strict=True)})


def _time(model: CompiledModel, kv: KVStorage, batch: Batch) -> float:
    times, began = 0, perf_counter()
    while times == 0 or (times < 4 and perf_counter() - began < _SHORTEST_S):
        model.forward(batch, kv)
        times += 1
    return (perf_counter() - began) / times
