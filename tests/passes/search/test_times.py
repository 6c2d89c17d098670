from dataclasses import replace

import pytest

from flexspec.errors import UsageError
from flexspec.passes.search.hardware import Hardware, OperatorTable, load_hardware
from flexspec.passes.search.times import OperatorTimes

PEAK, BANDWIDTH = 70e12, 600e9


def with_tables(*tables: OperatorTable) -> Hardware:
    hardware = load_hardware("a10gx4")
    kinds = {(table.kind, table.dtype) for table in tables}
    return replace(hardware, operators=(*tables, *(one for one in hardware.operators if (one.kind, one.dtype) not in kinds)))


def table(busy: int = 0, memory: float = 0.5) -> OperatorTable:
    return OperatorTable(
        kind="linear", dtype="bfloat16", busy=busy, tokens=(1, 4, 64), compute=(0.01, 0.04, 0.64), memory=(memory,) * 3, launch_us=(2, 2, 6)
    )


def test_the_larger_of_computing_and_reading_plus_the_launch() -> None:
    times = OperatorTimes(with_tables(table()), "bfloat16")
    flops, num_bytes = 3e9, 4e6
    assert times.seconds("linear", 64, flops, num_bytes) == pytest.approx(flops / (0.64 * PEAK) + 6e-6)
    assert times.seconds("linear", 64, 1e6, num_bytes) == pytest.approx(num_bytes / (0.5 * BANDWIDTH) + 6e-6)
    assert times.seconds("linear", 64, 1e6, num_bytes, launches=0) == pytest.approx(num_bytes / (0.5 * BANDWIDTH))


def test_tables_are_interpolated_in_the_logarithm_of_tokens() -> None:
    times = OperatorTimes(with_tables(table()), "bfloat16")
    between = times.seconds("linear", 16, 1e12, 0)  # halfway from 4 to 64
    assert between == pytest.approx(1e12 / (0.16 * PEAK) + 12**0.5 * 1e-6)
    assert times.seconds("linear", 1024, 1e12, 0) == times.seconds("linear", 64, 1e12, 0)


def test_a_linear_reads_its_weights_and_activations() -> None:
    times = OperatorTimes(with_tables(table(memory=1e-3)), "bfloat16")
    num_bytes = 2 * 512 * 1024 + 2 * 4 * (512 + 1024)
    assert times.linear(4, 512, 1024, launches=0) == pytest.approx(num_bytes / (1e-3 * BANDWIDTH))
    wide = OperatorTimes(replace(with_tables(table(memory=1e-3)), activation_bytes=4), "bfloat16")
    assert wide.linear(4, 512, 1024, launches=0) == pytest.approx((num_bytes + 2 * 4 * (512 + 1024)) / (1e-3 * BANDWIDTH))


def test_experts_are_linears_of_those_that_tokens_go_to() -> None:
    reading = OperatorTimes(with_tables(replace(table(), memory=(1e-3,) * 3)), "bfloat16")
    alone = reading.experts(1, 100, num_experts=8, top_k=2, weights=10**6)
    assert alone == pytest.approx((2 * 2 * 10**6 + 2 * 100) / (1e-3 * BANDWIDTH) + 2e-6)
    # Of 8 experts, 4 tokens miss one with a chance of (3/4)^4.
    needed = 8 * (1 - 0.75**4)
    four = reading.experts(4, 100, num_experts=8, top_k=2, weights=10**6)
    assert four == pytest.approx((2 * needed * 10**6 + 2 * 4 * 100) / (1e-3 * BANDWIDTH) + 2e-6, rel=1e-3)
    computing = OperatorTimes(with_tables(replace(table(), compute=(1e-6,) * 3)), "bfloat16")
    assert computing.experts(64, 100, num_experts=8, top_k=2, weights=10**6) == pytest.approx(2 * 64 * 2 * 10**6 / (1e-6 * PEAK), rel=1e-3)


def test_attention_reads_the_cache_once_for_the_rows_of_a_kv_head() -> None:
    tables = [replace(table(), kind="attention", compute=(1e-4,) * 3), replace(table(), kind="attention", memory=(1e-4,) * 3)]
    computing, reading = (OperatorTimes(with_tables(one), "bfloat16") for one in tables)
    # 16 tokens of a group of 4 rows are 64 query rows of a KV head.
    assert computing.attention(3, 16, 100, 8, 2, 64) == pytest.approx(4 * 3 * 16 * 8 * 64 * (100 + 8) / (1e-4 * PEAK) + 6e-6)
    num_bytes = 2 * 3 * 2 * 64 * 100 * 2 + 2 * 3 * 16 * 8 * 64 * 2
    assert reading.attention(3, 16, 100, 8, 2, 64) == pytest.approx(num_bytes / (1e-4 * BANDWIDTH) + 6e-6)


def test_an_8_bit_cache_is_half_to_read_where_there_is_one() -> None:
    one = replace(table(), kind="attention", memory=(1e-4,) * 3)
    hardware = with_tables(one)
    able = replace(hardware, devices=tuple(replace(device, kv_cache_dtypes=("fp8",)) for device in hardware.devices))
    full, half = (OperatorTimes(able, "bfloat16", kv_cache_dtype=dtype).attention(3, 1, 4096, 8, 2, 64) for dtype in ("auto", "fp8"))
    assert full - half == pytest.approx(3 * 2 * 2 * 64 * 4096 / (1e-4 * BANDWIDTH))
    with pytest.raises(UsageError, match=r"kv_cache_dtype='fp8' is not allowed on hardware a10gx4: not all of its devices list it"):
        OperatorTimes(hardware, "bfloat16", kv_cache_dtype="fp8")
    with pytest.raises(UsageError, match=r"kv_cache_dtype='fp8' is not allowed for a model in float32: give 'auto', or dtype='bfloat16'"):
        OperatorTimes(able, "float32", kv_cache_dtype="fp8")


def test_the_table_of_as_many_busy_devices_or_the_next_more() -> None:
    hardware = with_tables(table(1, 0.5), table(3, 0.25))
    seconds = {busy: OperatorTimes(hardware, "bfloat16", busy=busy).seconds("linear", 1, 0, 1e9) for busy in (None, 1, 2, 3, 4)}
    assert seconds[1] == pytest.approx(1e9 / (0.5 * BANDWIDTH) + 2e-6)
    assert seconds[2] == seconds[3] == seconds[4] == seconds[None] == pytest.approx(1e9 / (0.25 * BANDWIDTH) + 2e-6)


def test_a_dtype_that_devices_lack_is_refused() -> None:
    with pytest.raises(UsageError, match="dtype='float8' is not allowed on hardware h200x1: give one of bfloat16, float16, float32"):
        OperatorTimes(load_hardware("h200x1"), "float8")


def test_more_work_never_takes_less() -> None:
    for preset in ("a10gx4", "h100x8"):
        times = OperatorTimes(load_hardware(preset), "bfloat16")
        for sizes in ((1, 4096), (17, 4096), (17, 8192)):
            assert 0 < times.linear(*sizes, 4096) < times.linear(*sizes, 8192)
            assert 0 < times.rows("norm", *sizes, 64) < times.rows("norm", *sizes, 128)
        assert times.attention(1, 9, 512, 32, 8, 128) < times.attention(2, 9, 512, 32, 8, 128)
        assert 0 < times.embedding(1, 4096) < times.embedding(64, 4096)
