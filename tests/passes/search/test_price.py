"""Prices of passes of several sizes at once, against the equations of one."""

from dataclasses import replace

import numpy as np
import pytest

from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.hardware import CollectiveTable, Hardware, load_hardware
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.work import Move, Work

REQUESTS, TOKENS, CONTEXT = (1, 3, 16), (1, 5, 17), 700
WORKS = (
    Work(kind="linear", in_columns=512, out_columns=1024),
    Work(kind="linear", in_columns=512, out_columns=1024, launches=0),
    Work(kind="attention", in_columns=768, out_columns=256, heads=8, kv_heads=2, head_dim=32),
    Work(kind="attention", in_columns=768, out_columns=256, heads=8, kv_heads=2, head_dim=32, window=128),
    Work(kind="norm", in_columns=512, out_columns=512),
    Work(kind="embedding", in_columns=0, out_columns=512),
    Work(kind="view", in_columns=512, out_columns=512),
)


def costs(hardware: Hardware) -> PassCosts:
    return PassCosts(OperatorTimes(hardware, "bfloat16"), Collectives(hardware), requests=REQUESTS, tokens=TOKENS, context=CONTEXT)


def test_each_pass_is_priced_by_its_own_size() -> None:
    hardware = load_hardware("a10gx4")
    times, all_passes = OperatorTimes(hardware, "bfloat16"), costs(hardware)
    for work in WORKS:
        priced = all_passes.work(work)
        assert priced.shape == (3, 3)
        for row, requests in enumerate(REQUESTS):
            for column, tokens in enumerate(TOKENS):
                if work.kind == "linear":
                    wanted = times.linear(requests * tokens, 512, 1024, launches=work.launches)
                elif work.kind == "attention":
                    wanted = times.attention(requests, tokens, min(CONTEXT, work.window or CONTEXT), 8, 2, 32)
                elif work.kind == "embedding":
                    wanted = times.embedding(requests * tokens, 512)
                else:
                    wanted = 0.0 if work.kind == "view" else times.rows("norm", requests * tokens, 512, 512)
                assert priced[row, column] == pytest.approx(wanted) == all_passes.of_one(row, column, (0,)).operator(work)


def test_a_sum_is_gathered_and_then_added_up() -> None:
    """Of more than two ranks, whose order of adding must not change: each reads all summands."""
    hardware = load_hardware("a10gx4")
    times, links, rows = OperatorTimes(hardware, "bfloat16"), Collectives(hardware), np.outer(REQUESTS, TOKENS)
    move, num_bytes = Move(kind="reduce", columns=512), rows * 512 * 2
    two, four = (costs(hardware).move(move, tuple(range(ranks))) for ranks in (2, 4))
    assert two == pytest.approx(links.all_reduce(range(2), num_bytes))
    read = times.seconds("elementwise", rows, 0.0, 4.0 * num_bytes, launches=0)
    assert four == pytest.approx(links.all_reduce(range(4), num_bytes) + read) and (read > 0).all()
    table = CollectiveTable(kind="reduce", ranks=4, num_bytes=(1, 2), seconds=(1e-3, 1e-3))
    assert costs(replace(hardware, collectives=(table,))).move(move, tuple(range(4))) == pytest.approx(1e-3)


def test_the_largest_part_is_what_a_gather_takes() -> None:
    hardware = load_hardware("a10gx4")
    links, rows = Collectives(hardware), np.outer(REQUESTS, TOKENS)
    gathered = costs(hardware).move(Move(kind="combine", columns=300), (0, 1, 2))
    assert gathered == pytest.approx(links.gather((0, 1, 2), rows * 300 * 2))
