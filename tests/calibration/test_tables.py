import pytest

from flexspec.calibration.operators import Point
from flexspec.calibration.tables import Ceiling, ceiling, fitted
from flexspec.passes.search.hardware import load_hardware
from flexspec.passes.search.hardware.read import read_hardware
from flexspec.passes.search.times import OperatorTimes

PEAK, BANDWIDTH, LAUNCH = 2e11, 3e10, 3e-6
TOKENS = (1, 4, 16, 64, 256)


def true_seconds(flops: float, num_bytes: float) -> float:
    return max(flops / (0.8 * PEAK), num_bytes / (0.9 * BANDWIDTH)) + LAUNCH


def linear(tokens: int, features: int) -> Point:
    flops, num_bytes = 2.0 * tokens * features**2, 2.0 * features**2 + 8.0 * tokens * features
    return Point(tokens=tokens, flops=flops, num_bytes=num_bytes, seconds=true_seconds(flops, num_bytes))


def linears() -> list[Point]:
    return [
        Point(**(vars(linear(tokens, 2048)) | {"smaller": linear(tokens, 256)}))  # type: ignore[arg-type]
        for tokens in TOKENS
    ]


def times(tables: list[dict[str, object]], top: Ceiling) -> OperatorTimes:
    estimates = [
        {"kind": table.kind, "dtypes": [table.dtype], "tokens": list(table.tokens), "compute": list(table.compute)}
        | {"memory": list(table.memory), "launch_us": list(table.launch_us)}
        for table in load_hardware("h200x1").operators
        if table.dtype == "bfloat16" and table.kind not in {one["kind"] for one in tables}
    ]
    device = {"name": "x", "tflops": {"bfloat16": top.flops["bfloat16"] / 1e12}, "memory_gb": 1, "bandwidth_gb_s": top.bandwidth / 1e9}
    content = {
        "version": 1,
        "sources": ["a law"],
        "hosts": [{"memory_gb": 1, "bandwidth_gb_s": 1, "devices": [device]}],
        "operators": {"source": "measured", "tables": [*tables, *estimates]},
        "activation_bytes": 4,
    }
    return OperatorTimes(read_hardware("x", content, source="x"), "bfloat16")


def test_what_was_measured_comes_out_again_and_other_sizes_follow() -> None:
    points = linears()
    top = ceiling({("bfloat16", 1): {"linear": points}})
    found = times([fitted("linear", points, dtype="bfloat16", busy=0, top=top)], top)
    for tokens in TOKENS:
        for features in (256, 1024, 2048):
            point = linear(tokens, features)
            assert found.linear(tokens, features, features) == pytest.approx(point.seconds, rel=0.03), (tokens, features)


def test_launches_never_fall_and_stay_below_what_was_measured() -> None:
    points = linears()
    noisy = [Point(**(vars(one) | {"smaller": linear(one.tokens, 2048)})) for one in points]  # type: ignore[arg-type]
    top = ceiling({("bfloat16", 1): {"linear": noisy}})
    table = fitted("linear", noisy, dtype="bfloat16", busy=0, top=top)
    assert table["launch_us"] == sorted(table["launch_us"])
    assert all(1e-6 * launch < one.seconds for launch, one in zip(table["launch_us"], noisy, strict=True))


def test_work_without_flops_has_a_bandwidth_of_its_own() -> None:
    points = [Point(tokens=tokens, flops=0.0, num_bytes=1e3 * tokens, seconds=1e-6 + 1e-8 * tokens) for tokens in TOKENS]
    top = ceiling({("bfloat16", 1): {"linear": linears()}})
    found = times([fitted("norm", points, dtype="bfloat16", busy=0, top=top)], top)
    for point in points:
        assert found.seconds("norm", point.tokens, 0.0, point.num_bytes) == pytest.approx(point.seconds, rel=1e-3)


def test_the_ceiling_is_the_most_that_any_linear_reached() -> None:
    slow = [Point(tokens=1, flops=1e6, num_bytes=1e6, seconds=1.0)]
    fast = [Point(tokens=1, flops=1e6, num_bytes=2e6, seconds=0.5), Point(tokens=2, flops=9e6, num_bytes=2e6, seconds=1.0)]
    top = ceiling({("bfloat16", 1): {"linear": fast}, ("bfloat16", 2): {"linear": slow}, ("float32", 1): {"linear": slow}})
    assert (dict(top.flops), top.bandwidth) == ({"bfloat16": 9e6, "float32": 1e6}, 4e6)
