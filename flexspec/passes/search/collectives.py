"""Seconds of what ranks send each other: measured where there are tables, latency and bandwidth of the slowest link elsewhere.

Sizes are what one rank contributes. Two ranks exchange their summands; more of them gather all summands and add them up in the order
of the ranks, since the order in which a ring adds depends on where an element lies. So an all-reduce among T ranks takes T - 1 times the
latency and the summand's transfer. For two that is the latency and 2·(T - 1)/T transfers, as a ring's.
"""

import math
from collections.abc import Sequence

from flexspec.passes.search.hardware.description import CollectiveKind, CollectiveTable, Hardware, Link

_COMMAND_BYTES = 4096


class Collectives:
    """Collectives on a description's devices."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._tables = {(table.kind, table.ranks): table for table in hardware.collectives}

    def all_reduce(self, group: Sequence[int], num_bytes: float) -> float:
        """Seconds of a sum over a group of devices, which all get it; `num_bytes` of each summand."""
        return self._ring("reduce", group, num_bytes)

    def gather(self, group: Sequence[int], num_bytes: float) -> float:
        """Seconds until all devices of a group have all parts; `num_bytes` of the largest part."""
        return self._ring("combine", group, num_bytes)

    def broadcast(self, group: Sequence[int], num_bytes: float) -> float:
        """Seconds until all devices of a group have the first one's value."""
        return self._ring("replicate", group, num_bytes)

    def point_to_point(self, a: int, b: int, num_bytes: float) -> float:
        """Seconds of a message between two devices."""
        return self._pair("send", a, b, num_bytes)

    def command(self, a: int, b: int) -> float:
        """Seconds until a device runs a pass that another one's host asked it for."""
        return self._pair("command", a, b, _COMMAND_BYTES)

    def _ring(self, kind: CollectiveKind, group: Sequence[int], num_bytes: float) -> float:
        if len(group) == 1:
            return 0.0
        table = self._tables.get((kind, len(group)))
        if table is not None:
            return _interpolated(table, num_bytes)
        # A broadcast goes along a tree, what all ranks send around a ring.
        rounds = math.ceil(math.log2(len(group))) if kind == "replicate" else len(group) - 1
        return rounds * _alpha_beta(self._hardware.slowest(group), num_bytes)

    def _pair(self, kind: CollectiveKind, a: int, b: int, num_bytes: float) -> float:
        if a == b:
            return 0.0
        table = self._tables.get((kind, 2))
        return _alpha_beta(self._hardware.way(a, b), num_bytes) if table is None else _interpolated(table, num_bytes)


def _alpha_beta(link: Link, num_bytes: float) -> float:
    return link.latency_us * 1e-6 + num_bytes / (link.bandwidth_gb_s * 1e9)


def _interpolated(table: CollectiveTable, num_bytes: float) -> float:
    """Straight lines through the measured points: the first point's time below it, the last line's slope beyond it."""
    sizes, seconds = table.num_bytes, table.seconds
    if num_bytes <= sizes[0] or len(sizes) == 1:
        return seconds[0]
    after = next((place for place, size in enumerate(sizes) if size >= num_bytes), len(sizes) - 1)
    slope = (seconds[after] - seconds[after - 1]) / (sizes[after] - sizes[after - 1])
    if num_bytes > sizes[-1]:
        return seconds[-1] + max(slope, 0.0) * (num_bytes - sizes[-1])
    return seconds[after - 1] + slope * (num_bytes - sizes[after - 1])
