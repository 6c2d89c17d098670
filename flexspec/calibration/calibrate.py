"""All measurements of a machine, as the content of a hardware file."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from time import perf_counter, thread_time
from typing import Any

import torch

from flexspec.calibration.chains import Setting, cold_bytes
from flexspec.calibration.collectives import CollectiveSizes, measure_collectives, measure_messages
from flexspec.calibration.crew import Alone, Crew
from flexspec.calibration.host import HostSizes, measure_host
from flexspec.calibration.operators import ACTIVATION_BYTES, Point, Sizes, measure_operators, merged
from flexspec.calibration.tables import ceiling, fitted
from flexspec.codegen.cpu.native import NativeUnavailable, load_library
from flexspec.errors import UsageError
from flexspec.passes.search.hardware.machine import this_machine
from flexspec.passes.search.hardware.read import HARDWARE_VERSION
from flexspec.runtime.distributed.ranks import Ranks

DTYPES = ("float32", "bfloat16")
Measured = dict[tuple[str, int], dict[Any, list[Point]]]
_QUIET = 0.9
"""Share of the time that a thread that never waits has a core, on a machine with nothing else to do."""
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CalibrationSizes:
    """What is measured, part by part."""

    operators: Sizes = field(default_factory=Sizes)
    collectives: CollectiveSizes = field(default_factory=CollectiveSizes)
    host: HostSizes = field(default_factory=HostSizes)
    cold_bytes: int | None = None


DEFAULT_SIZES = CalibrationSizes()


def calibrate(ranks: Ranks | None, sizes: CalibrationSizes = DEFAULT_SIZES, *, tell: Tell = lambda line: None) -> dict[str, Any] | None:
    """Measure this machine with as many devices as there are ranks, each the threads that its rank has.

    Args:
        ranks: the job's, all of which call this; None for a single device that has all cores.
        sizes: what is measured.
        tell: is told what comes next, on the first rank.

    Returns:
        The content of a hardware file on the first rank, None on the others.

    Raises:
        UsageError: if there are no native kernels here, which are what is measured.
    """
    crew: Crew = Alone() if ranks is None else _JobCrew(ranks)
    say = tell if crew.rank == 0 else lambda line: None
    found = _operators(crew, sizes, say)
    collectives: list[dict[str, Any]] = []
    if isinstance(crew, _JobCrew):
        say(f"collectives among {crew.size} ranks")
        setting = _setting(DTYPES[-1], sizes)
        collectives = measure_collectives(setting, crew, crew.parallel_group, sizes.collectives)
        collectives += measure_messages(setting, crew.ranks, sizes.collectives)
    host: dict[str, float] = {}
    if crew.rank == 0:
        say("the host's share of a step")
        host = measure_host(sizes.host)
    crew.gather(None)
    return _content(found, crew.size, collectives, host) if crew.rank == 0 else None


def _operators(crew: Crew, sizes: CalibrationSizes, say: Tell) -> Measured:
    """Points of all operators, first with one device at work, then with all of them."""
    sweeps: dict[tuple[str, int], list[dict[Any, list[Point]]]] = {}
    alone_s = core_s = 0.0
    for number in range(sizes.operators.sweeps):
        for dtype, busy in product(DTYPES, sorted({1, crew.size})):
            setting = _setting(dtype, sizes)
            devices = f"{busy} of {crew.size} device{'s' if crew.size > 1 else ''} at work"
            say(f"operators in {dtype}, {devices}, {number + 1} of {sizes.operators.sweeps}")
            if busy == crew.size or crew.rank == 0:
                began, core_began = perf_counter(), thread_time()
                points = dict(measure_operators(setting, crew if busy == crew.size else Alone(), sizes.operators))
                sweeps.setdefault((dtype, busy), []).append(points)
                if busy == 1:
                    alone_s, core_s = alone_s + perf_counter() - began, core_s + thread_time() - core_began
            crew.gather(None)
    if core_s < _QUIET * alone_s:
        lost = 1 - core_s / alone_s
        say(f"something else had this core for {lost:.0%} of the time: collectives will seem slow; measure again when nothing else runs")
    return {key: dict(merged(several)) for key, several in sweeps.items()}


class _JobCrew:
    """The ranks of a job as a crew."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size
        self._group = ranks.group(range(ranks.size))
        ranks.share_memory()
        parallel_group = ranks.tensor_group(range(ranks.size), torch.device("cpu"))
        assert parallel_group is not None
        self.parallel_group = parallel_group

    def gather(self, value: Any) -> list[Any]:
        """See `Crew.gather`."""
        return self.ranks.gather_objects(value, self._group)


def _setting(dtype: str, sizes: CalibrationSizes) -> Setting:
    try:
        library = load_library()
    except NativeUnavailable as error:
        raise UsageError(f"this machine can't be calibrated: models run on native kernels, and {error}; install a C++ compiler") from None
    return Setting(
        library=library,
        dtype=getattr(torch, dtype),
        threads=torch.get_num_threads(),
        max_tokens=sizes.operators.tokens[-1],
        cold_bytes=sizes.cold_bytes or cold_bytes(),
    )


def _content(found: Measured, devices: int, collectives: list[dict[str, Any]], host: dict[str, float]) -> dict[str, Any]:
    top = ceiling(found)
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    machine = this_machine()
    device = {
        "count": devices,
        "name": machine["cpu"],
        "tflops": {dtype: round(flops / 1e12, 5) for dtype, flops in top.flops.items()},
        "memory_gb": round(memory_gb / devices, 3),
        "bandwidth_gb_s": round(top.bandwidth / 1e9, 3),
    }
    tables = [
        fitted(kind, points, dtype=dtype, busy=busy if devices > 1 else 0, top=top)
        for (dtype, busy), kinds in found.items()
        for kind, points in kinds.items()
    ]
    return {
        "version": HARDWARE_VERSION,
        "machine": machine,
        "sources": ["measured by `flexspec calibrate`"],
        "threads": torch.get_num_threads(),
        "activation_bytes": ACTIVATION_BYTES,
        "hosts": [{"memory_gb": round(memory_gb, 3), "bandwidth_gb_s": round(top.bandwidth / 1e9, 3), "devices": [device]}],
        "links": _links(collectives),
        "operators": {"source": "measured", "tables": tables},
        "host_times": {"source": "measured", **host},
        "collectives": collectives,
    }


def _links(collectives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The latency and bandwidth that measured messages come to, for what there are no tables of."""
    send = next((table for table in collectives if table["kind"] == "send"), None)
    if send is None:
        return []
    sizes, seconds = send["num_bytes"], send["seconds"]
    bandwidth = sizes[-1] / max(seconds[-1] - seconds[0], 1e-3 * seconds[-1])
    return [{"between": ["device", "host"], "latency_us": round(0.5e6 * seconds[0], 3), "bandwidth_gb_s": round(bandwidth / 1e9, 3)}]
