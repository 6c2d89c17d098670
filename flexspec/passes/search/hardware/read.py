"""From the JSON of a hardware file to its description."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

import networkx as nx

from flexspec.errors import UsageError
from flexspec.passes.search.hardware.description import (
    COLLECTIVE_KINDS,
    OPERATOR_KINDS,
    CollectiveTable,
    Device,
    Hardware,
    Host,
    HostTimes,
    MessageTimes,
    OperatorTable,
)
from flexspec.passes.search.hardware.fields import Fields

HARDWARE_VERSION = 1
DTYPES = ("float32", "bfloat16", "float16")
KV_CACHES = ("fp8",)
_MOST_DEVICES = 4096
_SWITCHES = ("host", "network")


def read_hardware(name: str, content: Any, *, source: str) -> Hardware:
    """A description from what a hardware file has.

    Args:
        name: of the preset or file.
        content: the file's JSON.
        source: what messages call the file.

    Raises:
        UsageError: naming the field, its value and what is valid.
    """
    if not isinstance(content, Mapping):
        raise UsageError(f"{source} is not a description of hardware: give an object with hosts, links and sources")
    fields = Fields(source, "", content)
    fields.check_known(
        "version",
        "sources",
        "hosts",
        "links",
        "operators",
        "host_times",
        "messages",
        "collectives",
        "activation_bytes",
        "threads",
        "machine",
    )
    if fields.count("version") != HARDWARE_VERSION:
        raise fields.refused("version", str(HARDWARE_VERSION))
    hosts, devices = _hosts(fields)
    defaults = _estimates()
    operators = fields.inner("operators") if fields.has("operators") else defaults.inner("operators")
    times = fields.inner("host_times") if fields.has("host_times") else defaults.inner("host_times")
    tables = _operators(operators)
    _check_covered(devices, tables, source)
    return Hardware(
        name=name,
        sources=fields.texts("sources"),
        devices=devices,
        hosts=hosts,
        links=_links(fields, devices),
        operators=tables,
        efficiency=operators.text("source"),
        collectives=_collectives(fields),
        host_times=_host_times(times),
        messages=_messages(fields.inner("messages") if fields.has("messages") else defaults.inner("messages")),
        activation_bytes=fields.count("activation_bytes") if fields.has("activation_bytes") else None,
        threads=fields.count("threads") if fields.has("threads") else None,
    )


@cache
def _estimates() -> Fields:
    """What stands for tables that a description doesn't have."""
    text = resources.files(__package__).joinpath("estimates.json").read_text(encoding="utf-8")
    return Fields("estimates", "", json.loads(text))


def _hosts(fields: Fields) -> tuple[tuple[Host, ...], tuple[Device, ...]]:
    hosts: list[Host] = []
    devices: list[Device] = []
    for one in fields.list_of("hosts"):
        one.check_known("count", "memory_gb", "bandwidth_gb_s", "devices")
        for _ in range(one.count("count", default=1)):
            hosts.append(Host(memory_gb=one.number("memory_gb"), bandwidth_gb_s=one.number("bandwidth_gb_s")))
            for kind in one.list_of("devices"):
                devices += [_device(kind, len(hosts) - 1)] * kind.count("count", default=1)
            if len(devices) > _MOST_DEVICES:
                raise UsageError(f"{fields.source}: hosts have more than {_MOST_DEVICES} devices: describe fewer")
    return tuple(hosts), tuple(devices)


def _device(fields: Fields, host: int) -> Device:
    fields.check_known("count", "name", "tflops", "memory_gb", "bandwidth_gb_s", "kv_cache_dtypes")
    peaks = fields.inner("tflops")
    peaks.check_known(*DTYPES)
    if not peaks.content:
        raise fields.refused("tflops", f"the peak of one or more of {', '.join(DTYPES)}")
    caches = fields.texts("kv_cache_dtypes") if fields.has("kv_cache_dtypes") else ()
    if not set(caches) <= set(KV_CACHES):
        raise fields.refused("kv_cache_dtypes", f"some of {', '.join(KV_CACHES)}")
    return Device(
        name=fields.text("name"),
        host=host,
        tflops={dtype: peaks.number(dtype) for dtype in peaks.content},
        memory_gb=fields.number("memory_gb"),
        bandwidth_gb_s=fields.number("bandwidth_gb_s"),
        kv_cache_dtypes=caches,
    )


def _links(fields: Fields, devices: tuple[Device, ...]) -> Any:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(devices)))
    for one in fields.list_of("links", default=len(devices) == 1):
        one.check_known("between", "latency_us", "bandwidth_gb_s")
        latency, bandwidth = one.number("latency_us", zero=True), one.number("bandwidth_gb_s")
        for a, b in _ends(one, devices):
            graph.add_edge(a, b, latency_us=latency, bandwidth_gb_s=bandwidth)
    reached = nx.node_connected_component(graph, 0)
    alone = next((place for place in range(len(devices)) if place not in reached), None)
    if alone is not None:
        raise UsageError(f"{fields.source}: links join device 0 with no way to device {alone}: give links that join all devices")
    return graph


def _ends(link: Fields, devices: tuple[Device, ...]) -> list[tuple[Any, Any]]:
    """The pairs of vertices that a link of the file stands for."""
    between = link.content.get("between")
    places = range(len(devices))
    if between == ["device", "device"]:
        return [(a, b) for a, b in combinations(places, 2) if devices[a].host == devices[b].host]
    if between == ["device", "host"]:
        return [(place, f"host {devices[place].host}") for place in places]
    if between == ["device", "network"]:
        return [(place, "network") for place in places]
    if between == ["host", "network"]:
        return [(f"host {host}", "network") for host in sorted({device.host for device in devices})]
    if isinstance(between, list) and len(between) == 2 and all(type(end) is int and end in places for end in between):
        if between[0] != between[1]:
            return [(between[0], between[1])]
    allowed = '["device", "device"] of a host, ["device", "host"], ["device", "network"], ["host", "network"]'
    if "between" not in link.content:
        raise UsageError(f"{link.source}: {link.place}between is missing: give {allowed}, or the numbers of two devices")
    raise link.refused("between", f"{allowed}, or the numbers of two of the {len(devices)} devices, counted from 0")


def _operators(fields: Fields) -> tuple[OperatorTable, ...]:
    fields.check_known("source", "tables")
    return tuple(table for one in fields.list_of("tables") for table in _operator_tables(one))


def _operator_tables(fields: Fields) -> list[OperatorTable]:
    fields.check_known("kind", "dtypes", "busy", "tokens", "compute", "memory", "launch_us")
    tokens = fields.ascending("tokens")
    dtypes = fields.texts("dtypes")
    if not set(dtypes) <= set(DTYPES):
        raise fields.refused("dtypes", f"some of {', '.join(DTYPES)}")
    return [
        OperatorTable(
            kind=fields.choice("kind", OPERATOR_KINDS),
            dtype=dtype,
            busy=fields.count("busy", default=0, zero=True),
            tokens=tokens,
            compute=fields.numbers("compute", length=len(tokens)),
            memory=fields.numbers("memory", length=len(tokens)),
            launch_us=fields.numbers("launch_us", length=len(tokens), zero=True),
        )
        for dtype in dtypes
    ]


def _check_covered(devices: tuple[Device, ...], tables: tuple[OperatorTable, ...], source: str) -> None:
    covered = {(table.kind, table.dtype) for table in tables}
    for dtype in dict.fromkeys(dtype for device in devices for dtype in device.tflops):
        for kind in OPERATOR_KINDS:
            if (kind, dtype) not in covered:
                raise UsageError(f"{source}: operators.tables has none of kind {kind} in {dtype}, which a device has a peak for: give one")


def _collectives(fields: Fields) -> tuple[CollectiveTable, ...]:
    tables = []
    for one in fields.list_of("collectives", default=True):
        one.check_known("kind", "ranks", "num_bytes", "seconds")
        sizes = one.ascending("num_bytes")
        tables.append(
            CollectiveTable(
                kind=one.choice("kind", COLLECTIVE_KINDS),
                ranks=one.count("ranks"),
                num_bytes=sizes,
                seconds=one.numbers("seconds", length=len(sizes)),
            )
        )
    return tuple(tables)


def _messages(fields: Fields) -> MessageTimes:
    names = ("order_us", "worker_us", "tensor_us")
    fields.check_known("source", *names)
    return MessageTimes(source=fields.text("source"), **{name: fields.number(name, zero=True) for name in names})


def _host_times(fields: Fields) -> HostTimes:
    names = ("step_us", "request_us", "node_us", "level_us")
    fields.check_known("source", *names)
    return HostTimes(**{name: fields.number(name, zero=True) for name in names})
