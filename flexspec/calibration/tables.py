"""From measured points to the shares of peak and bandwidth that the search computes with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from scipy.optimize import isotonic_regression

from flexspec.calibration.operators import Point

_ROUNDS = 8
_MOST_LAUNCH = 0.5
"""Of a small operator's time."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The most that was reached: FLOP/s by dtype, and bytes a second."""

    flops: Mapping[str, float]
    bandwidth: float


def ceiling(points: Mapping[tuple[str, int], Mapping[Any, Sequence[Point]]]) -> Ceiling:
    """The most that linears reached, of points by kind for each dtype and number of busy devices."""
    flops: dict[str, float] = {}
    bandwidth = 0.0
    for (dtype, _), kinds in points.items():
        for point in kinds["linear"]:
            flops[dtype] = max(flops.get(dtype, 0.0), point.flops / point.seconds)
            bandwidth = max(bandwidth, point.num_bytes / point.seconds)
    return Ceiling(flops=flops, bandwidth=bandwidth)


def fitted(kind: str, points: Sequence[Point], *, dtype: str, busy: int, top: Ceiling) -> dict[str, Any]:
    """A table of a hardware file, by which the measured points come out again.

    The measured time alone does not tell whether computing or memory bounded it, so both shares are such that either would give it. But
    memory that was faster for fewer tokens stays so for more, which only take longer for what they compute.
    """
    peak, bandwidth = top.flops[dtype], top.bandwidth
    launches = [0.0] * len(points)
    compute: list[float] = []
    memory: list[float] = []
    for _ in range(_ROUNDS):
        seconds = [point.seconds - launch for point, launch in zip(points, launches, strict=True)]
        memory = [point.num_bytes / (its * bandwidth) for point, its in zip(points, seconds, strict=True)]
        compute = [point.flops / (its * peak) if point.flops else 1.0 for point, its in zip(points, seconds, strict=True)]
        if points[0].flops:
            memory = list(accumulate(memory, max))
        found = [_launch(point, peak * one, bandwidth * other) for point, one, other in zip(points, compute, memory, strict=True)]
        launches = isotonic_regression(found).x.tolist()  # no fewer rows take longer to start
    return {
        "kind": kind,
        "dtypes": [dtype],
        "busy": busy,
        "tokens": [point.tokens for point in points],
        "compute": [round(one, 5) for one in compute],
        "memory": [round(one, 5) for one in memory],
        "launch_us": [round(1e6 * launch, 3) for launch in launches],
    }


def _launch(point: Point, flops_per_s: float, bytes_per_s: float) -> float:
    """What a call takes besides: what a smaller operator takes longer than its work does."""
    small = point.smaller
    if small is None:
        return 0.0
    work = max(small.flops / flops_per_s, small.num_bytes / bytes_per_s)
    return min(max(small.seconds - work, 0.0), _MOST_LAUNCH * min(small.seconds, point.seconds))
