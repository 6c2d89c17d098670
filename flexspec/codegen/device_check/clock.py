"""Times on a GPU by its own events; in a dry run everything is run once and takes no time."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch

from flexspec.codegen.device_check.part import Context

_WARM_UP = 3
_L2_TIMES = 3
"""How many times the L2 cache what is read in turn has to be, so that it comes from memory."""


def rotations(context: Context, num_bytes: int) -> int:
    """How many copies of `num_bytes` have to be read in turn, so that none of them is still in the L2 cache."""
    if context.is_dry:
        return 1
    l2_bytes = int(torch.cuda.get_device_properties(context.device).L2_cache_size)
    return max(2, -(-_L2_TIMES * l2_bytes // num_bytes))


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """`run` as a CUDA graph, after it ran on a stream of its own, where kernels are compiled and workspaces taken."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], object] = graph.replay
    return replay


def device_seconds(context: Context, run: Callable[[], object]) -> float | None:
    """Median seconds between events before and after `run`, the device idle before each; None in a dry run.

    What the host takes to launch counts where the device waits for it.
    """
    if context.is_dry:
        run()
        return None
    for _ in range(_WARM_UP):
        run()
    seconds = []
    for _ in range(context.sizes.repeats):
        start, end = _event(), _event()
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return float(median(seconds))


def graph_seconds(context: Context, calls: Sequence[Callable[[], object]]) -> float | None:
    """Seconds of one of `calls`, the mean of all when they run one after the other in a CUDA graph; None in a dry run."""

    def run() -> None:
        for call in calls:
            call()

    if context.is_dry:
        run()
        return None
    seconds = device_seconds(context, captured(run))
    assert seconds is not None
    return seconds / len(calls)


def host_seconds(context: Context, run: Callable[[], object]) -> float | None:
    """Seconds of the host for one call of many, the device being waited for at the end only; None in a dry run."""
    for _ in range(_WARM_UP):
        run()
    if context.is_dry:
        return None
    rounds = []
    for _ in range(context.sizes.repeats):
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(context.sizes.calls):
            run()
        rounds.append((perf_counter() - began) / context.sizes.calls)
        torch.cuda.synchronize()
    return median(rounds)


def micro(seconds: float | None) -> float | None:
    """Microseconds, for tables."""
    return None if seconds is None else round(seconds * 1e6, 2)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
