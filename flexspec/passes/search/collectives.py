"""Seconds of what ranks send each other: measured where there are tables, latency and bandwidth of the slowest link elsewhere.

Sizes are what one rank contributes. Two ranks exchange their summands; more of them gather all summands and add them up in the order
of the ranks, since the order in which a ring adds depends on where an element lies. So an all-reduce among T ranks takes T - 1 times the
latency and the summand's transfer. For two that is the latency and 2·(T - 1)/T transfers, as a ring's.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from flexspec.passes.search.hardware.description import CollectiveKind, CollectiveTable, Hardware, Link

_COMMAND_BYTES = 4096


class Collectives:
    """Collectives on a description's devices."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._tables = {(table.kind, table.ranks): table for table in hardware.collectives}
        self._slowest = cache(hardware.slowest)

    def is_measured(self, kind: CollectiveKind, ranks: int) -> bool:
        """Whether there is a table of that."""
        return (kind, ranks) in self._tables

    def all_reduce(self, group: Sequence[int], num_bytes: Any) -> Any:
        """Seconds of a sum over a group of devices, which all get it; `num_bytes` of each summand: a number, or an array of them."""
        return self._ring("reduce", group, num_bytes)

    def gather(self, group: Sequence[int], num_bytes: Any) -> Any:
        """Seconds until all devices of a group have all parts; `num_bytes` of the largest part."""
        return self._ring("combine", group, num_bytes)

    def broadcast(self, group: Sequence[int], num_bytes: Any) -> Any:
        """Seconds until all devices of a group have the first one's value."""
        return self._ring("replicate", group, num_bytes)

    def point_to_point(self, a: int, b: int, num_bytes: Any) -> Any:
        """Seconds of a tensor from one device to another, which goes by their hosts: out of the one, perhaps to the other host, and in."""
        if a == b:
            return 0.0 * num_bytes
        table, hardware = self._tables.get(("send", 2)), self._hardware
        if table is not None:
            return _interpolated(table, num_bytes)
        hosts = [hardware.devices[device].host for device in (a, b)]
        copies = sum(num_bytes / (hardware.hosts[host].bandwidth_gb_s * 1e9) for host in hosts)
        return hardware.messages.tensor_us * 1e-6 + copies + self._between_hosts(a, b, num_bytes)

    def command(self, a: int, b: int, workers: int = 1) -> float:
        """Seconds until the last of some workers runs a pass that another one's host asked it for; `b` is the furthest."""
        table, times = self._tables.get(("command", 2)), self._hardware.messages
        further = (workers - 1) * times.worker_us * 1e-6
        if table is not None:
            return table.seconds[0] + further
        return times.order_us * 1e-6 + further + float(self._between_hosts(a, b, _COMMAND_BYTES))

    def _between_hosts(self, a: int, b: int, num_bytes: Any) -> Any:
        """Seconds on the network, none within a host."""
        if self._hardware.devices[a].host == self._hardware.devices[b].host:
            return 0.0 * num_bytes
        return _alpha_beta(self._hardware.way(a, b), num_bytes)

    def _ring(self, kind: CollectiveKind, group: Sequence[int], num_bytes: Any) -> Any:
        if len(group) == 1:
            return 0.0 * num_bytes
        table = self._tables.get((kind, len(group)))
        if table is not None:
            return _interpolated(table, num_bytes)
        # A broadcast goes along a tree, what all ranks send around a ring.
        rounds = math.ceil(math.log2(len(group))) if kind == "replicate" else len(group) - 1
        return rounds * _alpha_beta(self._slowest(tuple(group)), num_bytes)


def _alpha_beta(link: Link, num_bytes: Any) -> Any:
    return link.latency_us * 1e-6 + num_bytes / (link.bandwidth_gb_s * 1e9)


def _interpolated(table: CollectiveTable, num_bytes: Any) -> Any:
    """Straight lines through the measured points: the first point's time below it, the last line's slope beyond it."""
    sizes, seconds = table.num_bytes, table.seconds
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
    return np.interp(num_bytes, sizes, seconds) + max(slope, 0.0) * np.maximum(num_bytes - sizes[-1], 0)
