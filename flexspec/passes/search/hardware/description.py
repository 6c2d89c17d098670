"""Hardware as the search sees it: devices and hosts, the links between them, and how fast operators and collectives are there.

Seconds, bytes and FLOP/s are those of SI: a GB is 10⁹ bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import networkx as nx

OperatorKind = Literal["linear", "attention", "norm", "elementwise", "embedding"]
OPERATOR_KINDS: tuple[OperatorKind, ...] = ("linear", "attention", "norm", "elementwise", "embedding")
CollectiveKind = Literal["reduce", "combine", "replicate", "send", "command"]
COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = ("reduce", "combine", "replicate", "send", "command")
"""Sum over all ranks; all ranks' columns; the first rank's value; point to point; the order to run a pass, from driver to worker."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What runs one rank.

    Attributes:
        name: of its kind, such as `NVIDIA A10G`.
        host: index of the host it is in.
        tflops: peak of matrix products by dtype.
        memory_gb: its memory.
        bandwidth_gb_s: of its memory.
        kv_cache_dtypes: of KV caches that it can have besides those in the model's dtype.
    """

    name: str
    host: int
    tflops: Mapping[str, float]
    memory_gb: float
    bandwidth_gb_s: float
    kv_cache_dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with devices.

    Attributes:
        memory_gb: what weights can be offloaded to.
        bandwidth_gb_s: from there to one device.
    """

    memory_gb: float
    bandwidth_gb_s: float


@dataclass(frozen=True)
class Link:
    """A way between two devices."""

    latency_us: float
    bandwidth_gb_s: float


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """How fast operators of a kind are, by their number of tokens.

    Attributes:
        kind: one of `OPERATOR_KINDS`.
        dtype: of weights and KV cache.
        busy: devices that worked at the same time, which share the bandwidth of a host's memory; 0: it makes no difference.
        tokens: ascending; of attention, the query rows that read the same keys: tokens of a request times heads of a KV group.
        compute: share of a device's peak FLOP/s that is reached where computing bounds, at each number of tokens.
        memory: share of its bandwidth that is reached where memory bounds.
        launch_us: what a call takes besides.
    """

    kind: OperatorKind
    dtype: str
    busy: int
    tokens: tuple[int, ...]
    compute: tuple[float, ...]
    memory: tuple[float, ...]
    launch_us: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveTable:
    """What a collective takes with all ranks working, measured.

    Attributes:
        kind: one of `COLLECTIVE_KINDS`.
        ranks: how many took part.
        num_bytes: ascending; what each rank contributes, or what is sent.
        seconds: for each size.
    """

    kind: CollectiveKind
    ranks: int
    num_bytes: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """What the host does in a step besides running passes, in microseconds.

    Attributes:
        step_us: of every step.
        request_us: for each request of the step.
        node_us: for each drafted node, from its draft to its verification.
        level_us: for each pass of a draft model, its batch and the choice of nodes from its logits.
    """

    step_us: float
    request_us: float
    node_us: float
    level_us: float

    def seconds(self, *, requests: Any, nodes: Any) -> Any:
        """Of a step with so many requests and drafted nodes of all of them, passes of draft models aside; numbers, or arrays of them."""
        return (self.step_us + requests * self.request_us + nodes * self.node_us) * 1e-6


@dataclass(frozen=True, kw_only=True)
class MessageTimes:
    """What ranks' messages take that go by their hosts: orders to run a pass, results of stages and of drafters on other devices.

    Attributes:
        source: where the figures come from.
        order_us: until a worker runs what it was ordered to.
        worker_us: for each further worker, which the driver tells one after the other.
        tensor_us: of a tensor, the time of its bytes aside.
    """

    source: str
    order_us: float
    worker_us: float
    tensor_us: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Hardware:
    """Devices and what connects them.

    Attributes:
        name: of the preset or file.
        sources: where the figures come from.
        devices: in the order of ranks: neighbours are close to each other.
        hosts: machines.
        links: vertices are the indices of devices, and strings for switches; edges have `latency_us` and `bandwidth_gb_s`.
        operators: how fast operators are.
        efficiency: where `operators` comes from: `measured`, or `estimate: …`.
        collectives: measured ones.
        host_times: what the host takes.
        messages: what messages by way of hosts take where `collectives` has no table of them.
        activation_bytes: of an element of an activation; None: as the model's dtype.
        threads: of a rank on this machine; None on devices that have no such thing.
    """

    name: str
    sources: tuple[str, ...]
    devices: tuple[Device, ...]
    hosts: tuple[Host, ...]
    links: Any
    operators: tuple[OperatorTable, ...]
    efficiency: str
    collectives: tuple[CollectiveTable, ...] = ()
    host_times: HostTimes
    messages: MessageTimes
    activation_bytes: int | None = None
    threads: int | None = None
    _ways: dict[tuple[int, int], Link] = field(default_factory=dict, repr=False)

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return len(self.devices)

    @property
    def is_measured(self) -> bool:
        """Whether the speed of operators was measured, not estimated."""
        return self.efficiency == "measured"

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """What all devices compute in."""
        return tuple(dtype for dtype in self.devices[0].tflops if all(dtype in device.tflops for device in self.devices))

    def way(self, a: int, b: int) -> Link:
        """The fastest way between two devices: latencies on it add up, the narrowest link bounds it."""
        assert a != b
        key = (min(a, b), max(a, b))
        if key not in self._ways:
            path = nx.shortest_path(self.links, *key, weight="latency_us")
            edges = [self.links.edges[pair] for pair in pairwise(path)]
            self._ways[key] = Link(sum(edge["latency_us"] for edge in edges), min(edge["bandwidth_gb_s"] for edge in edges))
        return self._ways[key]

    def slowest(self, group: Sequence[int]) -> Link:
        """The largest latency and the least bandwidth between neighbours in a ring of two devices or more."""
        ways = [self.way(a, b) for a, b in pairwise((*group, group[0]))]
        return Link(max(way.latency_us for way in ways), min(way.bandwidth_gb_s for way in ways))
