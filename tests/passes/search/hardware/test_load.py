import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from flexspec.errors import UsageError
from flexspec.passes.search.hardware import OPERATOR_KINDS, PRESETS, load_hardware
from flexspec.passes.search.hardware.load import local_file
from flexspec.passes.search.hardware.machine import this_machine

TINY: dict[str, Any] = {
    "version": 1,
    "sources": ["made up"],
    "hosts": [
        {
            "count": 2,
            "memory_gb": 10,
            "bandwidth_gb_s": 5,
            "devices": [{"count": 2, "name": "box", "tflops": {"float32": 1}, "memory_gb": 4, "bandwidth_gb_s": 20}],
        }
    ],
    "links": [
        {"between": ["device", "host"], "latency_us": 1, "bandwidth_gb_s": 10},
        {"between": ["host", "network"], "latency_us": 20, "bandwidth_gb_s": 1},
    ],
}


def written(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "local"])
def test_presets_are_complete(name: str) -> None:
    hardware = load_hardware(name)
    devices, _, nodes = name.partition("x")[2].partition("-")
    assert hardware.num_devices == int(devices) * int((nodes or "1")[0])
    assert hardware.dtypes == ("bfloat16", "float16", "float32")
    assert hardware.sources and "datasheet" in hardware.sources[0]
    assert hardware.efficiency.startswith("estimate") and not hardware.is_measured
    assert {table.kind for table in hardware.operators} == set(OPERATOR_KINDS)
    assert all(0 < share <= 1 for table in hardware.operators for share in (*table.compute, *table.memory))


def test_every_json_file_of_the_package_is_a_preset() -> None:
    files = {
        entry.name.removesuffix(".json") for entry in resources.files("flexspec.passes.search.hardware").iterdir() if ".json" in entry.name
    }
    assert files == set(PRESETS) - {"local"} | {"estimates"}


def test_a_file_is_read(tmp_path: Path) -> None:
    hardware = load_hardware(written(tmp_path / "tiny.json", TINY))
    assert (hardware.name, hardware.num_devices, len(hardware.hosts)) == ("tiny", 4, 2)
    assert [device.host for device in hardware.devices] == [0, 0, 1, 1]
    assert (hardware.way(0, 1).latency_us, hardware.way(0, 1).bandwidth_gb_s) == (2, 10)
    assert hardware.way(0, 3) == hardware.way(3, 0)
    assert (hardware.way(0, 3).latency_us, hardware.way(0, 3).bandwidth_gb_s) == (42, 1)
    assert (hardware.slowest([0, 1]).latency_us, hardware.slowest([0, 1, 2]).latency_us) == (2, 42)


def test_links_of_two_devices(tmp_path: Path) -> None:
    content = copy.deepcopy(TINY)
    content["links"].append({"between": [0, 1], "latency_us": 0.5, "bandwidth_gb_s": 100})
    hardware = load_hardware(written(tmp_path / "tiny.json", content))
    assert hardware.way(0, 1).latency_us == 0.5
    assert hardware.way(2, 3).latency_us == 2


def changed(place: str, value: Any) -> Any:
    """The description with one field changed, or missing if the value is `...`."""
    content = copy.deepcopy(TINY)
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner: Any = content
    for part in path:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return content


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("version", 2, "version=2 is not allowed: give 1"),
        ("hosts", ..., "hosts is missing: give a list of objects"),
        ("hosts", [], r"hosts=\[\] is not allowed"),
        ("sources", ..., "sources is missing"),
        ("hosts.0.memory_gb", -1, r"hosts\[0\]\.memory_gb=-1 is not allowed: give a number above 0"),
        ("hosts.0.devices.0.memory_gb", ..., r"hosts\[0\]\.devices\[0\]\.memory_gb is missing: give a number"),
        ("hosts.0.devices.0.bandwidth_gb_s", 0, r"bandwidth_gb_s=0 is not allowed: give a number above 0"),
        ("hosts.0.devices.0.bandwidth_gb_s", True, "bandwidth_gb_s=True is not allowed"),
        ("hosts.0.devices.0.memory_gb", "24 GB", "memory_gb='24 GB' is not allowed: give a number"),
        ("hosts.0.devices.0.memory_gb", float("inf"), "memory_gb=inf is not allowed"),
        ("hosts.0.devices.0.tflops", {"int8": 3}, "tflops.int8 is unknown: the fields there are float32, bfloat16, float16"),
        ("hosts.0.devices.0.tflops", {}, "tflops={} is not allowed"),
        ("hosts.0.devices.0.count", 0, "count=0 is not allowed: give a whole number of at least 1"),
        ("hosts.0.count", 5000, "more than 4096 devices"),
        ("links.0.latency_us", -0.5, r"links\[0\]\.latency_us=-0.5 is not allowed: give a number of at least 0"),
        ("links.1.bandwidth_gb_s", ..., r"links\[1\]\.bandwidth_gb_s is missing"),
        ("links.1.between", ..., r"links\[1\]\.between is missing"),
        ("links.1.between", [0, 9], r"between=\[0, 9\] is not allowed: .* of two of the 4 devices"),
        ("links", TINY["links"][:1], "no way to device 2"),
        ("colour", "red", "colour is unknown: the fields there are version, sources"),
        ("operators", {"source": "x", "tables": [{"kind": "linear"}]}, r"operators.tables\[0\].tokens is missing"),
        ("hosts.0.devices.0.kv_cache_dtypes", ["int4"], r"kv_cache_dtypes=\['int4'\] is not allowed: give some of fp8"),
        ("messages", {"source": "x", "order_us": 1, "worker_us": 1}, "messages.tensor_us is missing: give a number"),
        ("messages", {"source": "x", "order_us": -1, "worker_us": 1, "tensor_us": 1}, "messages.order_us=-1 is not allowed"),
        (
            "host_times",
            {"source": "x", "step_us": 1, "request_us": 1, "node_us": -1, "level_us": 1},
            "host_times.node_us=-1 is not allowed",
        ),
    ],
)
def test_wrong_files_are_refused_by_field(tmp_path: Path, place: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_hardware(written(tmp_path / "tiny.json", changed(place, value)))


@pytest.mark.parametrize("table", [{"kind": "pooling"}, {"compute": [1.0]}, {"tokens": [4, 1]}, {"busy": -1}, {"dtypes": ["int8"]}])
def test_wrong_tables_are_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    right = {"kind": "linear", "dtypes": ["float32"], "tokens": [1, 4], "compute": [0.5, 1], "memory": [0.5, 1], "launch_us": [0, 0]}
    content = TINY | {"operators": {"source": "x", "tables": [right | table]}}
    (field,) = table
    with pytest.raises(UsageError, match=rf"operators\.tables\[0\]\.{field}"):
        load_hardware(written(tmp_path / "tiny.json", content))
    with pytest.raises(UsageError, match="none of kind attention in float32"):
        load_hardware(written(tmp_path / "tiny.json", content | {"operators": {"source": "x", "tables": [right]}}))


def test_unknown_names_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"hardware 'h100' is unknown: give one of a10gx4, .*local, or a JSON file"):
        load_hardware("h100")
    with pytest.raises(UsageError, match="can't be read: No such file"):
        load_hardware(tmp_path / "missing.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        load_hardware(tmp_path / "broken.json")
    with pytest.raises(UsageError, match="is not a description of hardware"):
        load_hardware(written(tmp_path / "list.json", [1]))


def test_local_is_what_was_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"hardware local is not known yet: .*`flexspec calibrate`"):
        load_hardware("local")
    with pytest.raises(UsageError, match=r"hardware local-3 is not known yet: .*`flexspec calibrate --devices 3`"):
        load_hardware("local-3")
    local_file(4).parent.mkdir(parents=True)
    for devices in (1, 4):
        one = copy.deepcopy(TINY) | {"machine": this_machine()}
        one["hosts"][0] |= {"count": 1}
        one["hosts"][0]["devices"][0]["count"] = devices
        written(local_file(devices), one)
    assert (load_hardware("local").num_devices, load_hardware("local-1").num_devices) == (4, 1)
    written(local_file(4), TINY | {"machine": {"cpu": "another", "cores": 3}})
    with pytest.raises(UsageError, match="measured on another machine"):
        load_hardware("local")
