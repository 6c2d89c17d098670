import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flexspec.calibration.calibrate import CalibrationSizes, calibrate
from flexspec.calibration.chains import Setting, attention_chain, linear_chain
from flexspec.calibration.collectives import CollectiveSizes, measure_collectives, measure_messages
from flexspec.calibration.crew import Alone, measured
from flexspec.calibration.host import HostSizes
from flexspec.calibration.operators import Sizes
from flexspec.cli.main import main
from flexspec.codegen.cpu.native import load_library
from flexspec.passes.search.hardware import OPERATOR_KINDS
from flexspec.passes.search.hardware.read import read_hardware
from flexspec.passes.search.times import OperatorTimes

OPERATORS = Sizes(tokens=(1, 4, 9), small=(32, 32), large=(64, 96), contexts=(16, 48), head_dim=16, columns=32, budget_s=1e-6, sweeps=1)
HOST = HostSizes(vocab=64, trees=((), (2, 1)), requests=(1, 2), new_tokens=12)
COLLECTIVES = CollectiveSizes(num_bytes=(64, 4096), budget_s=1e-6, repeats=2)
TINY = CalibrationSizes(operators=OPERATORS, collectives=COLLECTIVES, host=HOST, cold_bytes=1 << 15)


def setting() -> Setting:
    return Setting(library=load_library(), dtype=torch.bfloat16, threads=1, max_tokens=9, cold_bytes=1 << 15)


def test_a_calibrated_machine_is_a_description_of_hardware() -> None:
    lines: list[str] = []
    content = calibrate(None, TINY, tell=lines.append)
    steps = [line for line in lines if "something else" not in line]
    assert steps == [f"operators in {dtype}, 1 of 1 device at work, 1 of 1" for dtype in ("float32", "bfloat16")] + [
        "the host's share of a step"
    ]
    hardware = read_hardware("local-1", json.loads(json.dumps(content)), source="x")
    assert (hardware.num_devices, hardware.is_measured, hardware.activation_bytes, hardware.collectives) == (1, True, 4, ())
    assert hardware.threads == torch.get_num_threads()
    assert {(table.kind, table.dtype) for table in hardware.operators} == {(k, d) for k in OPERATOR_KINDS for d in ("float32", "bfloat16")}
    assert all(value >= 0 for value in vars(hardware.host_times).values()) and hardware.host_times.step_us > 0
    times = OperatorTimes(hardware, "bfloat16")
    assert 0 < 0.9 * times.linear(1, 64, 96) < times.linear(9, 64, 96)
    assert 0 < times.attention(1, 1, 48, 4, 4, 16) < 1


def test_chains_read_more_than_caches_hold() -> None:
    linears = linear_chain(setting(), 32, 64)
    assert linears.calls * 32 * 64 * 2 >= 1 << 15 and linears.calls % 2 == 0
    attention = attention_chain(setting(), heads=4, kv_heads=2, head_dim=16, context=32)
    assert attention.calls * 2 * 32 * 2 * 16 * 2 >= 1 << 15
    assert attention.kv.shape.num_layers == attention.calls
    assert bool(attention.kv.keys.any()) and attention.kv.keys.shape[1] >= 32 + 9
    for chain in (linears, attention):
        chain.passes(3, context=min(32, chain.kv.block_size - 3))()


def test_seconds_are_the_mean_over_ranks_of_medians() -> None:
    class Two:
        rank, size = 0, 2

        def gather(self, value: Any) -> list[Any]:
            return [value, 3.0]

    calls: list[None] = []
    assert measured(lambda: calls.append(None), Two(), budget_s=6.0) == pytest.approx(1.5, abs=0.01)
    assert len(calls) == 1 + 2  # the other rank takes 3 s for a call
    assert measured(lambda: None, Alone(), budget_s=1e-9) < 1e-3


def test_a_thread_is_not_charged_for_the_time_it_had_no_core() -> None:
    assert measured(lambda: time.sleep(0.02), Alone(), budget_s=1e-9) > 0.015
    assert measured(lambda: time.sleep(0.02), Alone(), budget_s=1e-9, in_thread=True) < 0.01


class FakeGroup:
    """Two ranks of which the other does nothing."""

    rank, size, name = 0, 2, "fake"

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def reduce(self, summand: Tensor) -> None:
        self.calls["reduce"] = self.calls.get("reduce", 0) + 1

    def combine(self, columns: Tensor, widths: Sequence[int], out: Tensor) -> None:
        assert out.shape[1] == sum(widths) and columns.shape[1] == widths[0]
        self.calls["combine"] = self.calls.get("combine", 0) + 1

    def replicate(self, value: Tensor) -> None:
        self.calls["replicate"] = self.calls.get("replicate", 0) + 1


def test_collectives_are_measured_inside_passes() -> None:
    group = FakeGroup()
    tables = measure_collectives(setting(), Alone(), group, COLLECTIVES)
    assert [table["kind"] for table in tables] == ["reduce", "combine", "replicate"]
    assert set(group.calls) == {"reduce", "combine", "replicate"} and min(group.calls.values()) >= 2 * 24
    assert all(table["num_bytes"] == [64, 4096] and min(table["seconds"]) > 0 for table in tables)


class FakeRanks:
    """Ranks of one process, by queues."""

    def __init__(self, rank: int, boxes: Sequence["queue.Queue[Any]"]) -> None:
        self.rank, self.size, self._boxes = rank, 2, boxes

    def send(self, to: int, message: Any) -> None:
        self._boxes[to].put(message)

    def receive(self, source: int) -> Any:
        return self._boxes[self.rank].get(timeout=20)

    def send_tensor(self, to: int, tensor: Tensor) -> None:
        self._boxes[to].put(tensor.clone())

    def receive_tensor(self, source: int, shape: Sequence[int]) -> Tensor:
        tensor: Tensor = self._boxes[self.rank].get(timeout=20)
        assert tensor.shape == tuple(shape)
        return tensor


def test_messages_are_measured_there_and_back() -> None:
    boxes: list[queue.Queue[Any]] = [queue.Queue(), queue.Queue()]
    results: dict[int, list[dict[str, Any]]] = {}

    def run(rank: int) -> Callable[[], None]:
        return lambda: results.__setitem__(rank, measure_messages(setting(), FakeRanks(rank, boxes), COLLECTIVES))  # type: ignore[arg-type]

    other = threading.Thread(target=run(1))
    other.start()
    run(0)()
    other.join(20)
    send, command = results[0]
    assert (send["kind"], send["num_bytes"], command["kind"]) == ("send", [64, 4096], "command")
    assert len(send["seconds"]) == 2 and min(send["seconds"] + command["seconds"]) > 0
    assert results[1] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--devices", "0"], "--devices 0 is not allowed: give 1 to"),
        (["--devices", "9999"], "--devices 9999 is not allowed"),
        (["--devices", "1", "--output", "missing/x.json"], "there is no folder 'missing'"),
    ],
)
def test_wrong_options(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["calibrate", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_ranks_of_another_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4))
    assert main(["calibrate", "--devices", "3"]) == 2
    assert "--devices 3 is not allowed in a job of 2 ranks" in capsys.readouterr().err
