from dataclasses import replace

import pytest

from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.hardware import CollectiveTable, load_hardware


def test_latency_and_bandwidth_of_the_slowest_link() -> None:
    collectives = Collectives(load_hardware("a10gx4-2nodes"))
    inside, outside, m = (8e-6, 25e9), (32e-6, 12.5e9), 1e6
    assert collectives.all_reduce([0, 1], m) == pytest.approx(inside[0] + m / inside[1])
    assert collectives.all_reduce(range(4), m) == pytest.approx(3 * (inside[0] + m / inside[1]))
    assert collectives.gather(range(8), m) == pytest.approx(7 * (outside[0] + m / outside[1]))
    assert collectives.broadcast(range(8), m) == pytest.approx(3 * (outside[0] + m / outside[1]))


def test_orders_and_tensors_go_by_the_hosts() -> None:
    """Not from device to device: the driver's host tells a worker's, and a tensor is copied out of its device and into the other."""
    hardware = load_hardware("a10gx4-2nodes")
    collectives, times, m = Collectives(hardware), hardware.messages, 1e6
    assert collectives.point_to_point(2, 3, m) == pytest.approx(times.tensor_us * 1e-6 + 2 * m / 25e9)
    assert collectives.point_to_point(3, 4, m) == pytest.approx(times.tensor_us * 1e-6 + 2 * m / 25e9 + 32e-6 + m / 12.5e9)
    assert collectives.command(0, 1) == pytest.approx(times.order_us * 1e-6)
    assert collectives.command(0, 4) == pytest.approx(times.order_us * 1e-6 + 32e-6 + 4096 / 12.5e9)
    # One worker is told after the other.
    assert collectives.command(0, 1, 7) == pytest.approx((times.order_us + 6 * times.worker_us) * 1e-6)


def test_one_device_sends_nothing() -> None:
    collectives = Collectives(load_hardware("a10gx4"))
    assert collectives.all_reduce([2], 1e9) == collectives.gather([2], 1e9) == collectives.point_to_point(1, 1, 1e9) == 0


def test_measured_tables_come_first() -> None:
    tables = (
        CollectiveTable(kind="reduce", ranks=2, num_bytes=(1000, 3000, 5000), seconds=(1e-3, 2e-3, 6e-3)),
        CollectiveTable(kind="command", ranks=2, num_bytes=(4096,), seconds=(7e-4,)),
    )
    hardware = replace(load_hardware("a10gx4"), collectives=tables)
    collectives = Collectives(hardware)
    sizes = {10: 1e-3, 1000: 1e-3, 2000: 1.5e-3, 3000: 2e-3, 4000: 4e-3, 6000: 8e-3}
    assert [collectives.all_reduce([1, 3], size) for size in sizes] == pytest.approx(list(sizes.values()))
    assert collectives.command(0, 1) == 7e-4
    assert collectives.command(0, 1, 3) == pytest.approx(7e-4 + 2e-6 * hardware.messages.worker_us)
    # Three ranks were not measured.
    assert collectives.all_reduce([0, 1, 2], 1000) == Collectives(load_hardware("a10gx4")).all_reduce([0, 1, 2], 1000)


def test_more_bytes_never_take_less_beyond_the_table() -> None:
    table = CollectiveTable(kind="reduce", ranks=2, num_bytes=(1000, 2000), seconds=(2e-3, 1e-3))
    collectives = Collectives(replace(load_hardware("a10gx4"), collectives=(table,)))
    assert collectives.all_reduce([0, 1], 1e9) == 1e-3
