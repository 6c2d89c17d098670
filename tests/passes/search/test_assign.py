"""Ways to divide a block: none better than what is found, and what is known to be good comes out."""

import random
from dataclasses import dataclass, replace
from itertools import product

import pytest
from transformers import LlamaConfig

from flexspec.errors import UsageError
from flexspec.passes.blocks import find_blocks
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.search.assign import Assigner, assignment, kept_whole, most_devices, why_not
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.divided_place import DividedPlace, all_units
from flexspec.passes.search.hardware import load_hardware
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.records import BlockRecord, block_record, graph_record, model_record
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.work import Assignment, Move, Work
from graph_cases import captured

LLAMA_405B = LlamaConfig(
    hidden_size=16384,
    intermediate_size=53248,
    num_hidden_layers=126,
    num_attention_heads=128,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=131072,
)


@dataclass(frozen=True)
class Machine:
    """Devices that read a weight in a second and an activation in a thousandth, joined by links."""

    latency: float
    speed: float

    def operator(self, work: Work) -> float:
        match work.kind:
            case "view":
                return 0.0
            case "linear":
                return 0.5 * work.launches + work.in_columns * work.out_columns
            case "attention":
                return 0.5 + 50.0 * work.kv_heads * work.head_dim
            case _:
                return 0.5 + 1e-3 * (work.in_columns + work.out_columns)

    def move(self, move: Move) -> float:
        return 0.5 + 2e-3 * move.columns if move.kind == "repartition" else self.latency + move.columns / self.speed


@dataclass(frozen=True)
class Random:
    """Times that have nothing to do with sizes; only that a linear is no slower as part of another one."""

    seed: int

    def operator(self, work: Work) -> float:
        alone = random.Random(f"{self.seed} {replace(work, launches=1)}").random()
        return alone if work.launches else 0.7 * alone

    def move(self, move: Move) -> float:
        return 0.3 * random.Random(f"{self.seed} {move}").random()


FAST, SLOW = Machine(latency=1.0, speed=1e3), Machine(latency=1e6, speed=1.0)


def llama(**overrides: int) -> BlockRecord:
    _, model = captured("llama", **overrides)
    run_passes(model, FLAT)
    return graph_record(model).blocks["block_0"]


def part(first: str, last: str) -> BlockRecord:
    """A few operators of a LLaMA block, as a place of their own."""
    _, model = captured("llama")
    run_passes(model, FLAT)
    nodes = list(find_blocks(model).layers[0].nodes)
    names = [node.name for node in nodes]
    return block_record("part", nodes[names.index(first) : names.index(last) + 1])


def every_way(block: BlockRecord, degree: int) -> list[Assignment]:
    place = DividedPlace(block, degree, all_units(block, degree))
    found = []
    for names in product(*([option.name for option in options] for options in place.options)):
        try:
            found.append(place.assignment(names))
        except UsageError:
            continue
    return found


def front(ways: list[Assignment]) -> list[tuple[float, int, int]]:
    costs = {(round(one.seconds, 9), one.weights, one.kv_heads) for one in ways}
    return sorted(one for one in costs if not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in costs))


@pytest.mark.parametrize(
    ("first", "last", "degree"),
    [
        ("rms_norm_default_1", "add_tensor_5", 3),
        ("rms_norm_default_1", "linear_default_6", 2),
        ("linear_default_2", "linear_default_3", 2),
    ],
)
def test_nothing_is_better_than_what_is_found(first: str, last: str, degree: int) -> None:
    block = part(first, last)
    ways = every_way(block, degree)
    assert len(ways) > 50
    for price in (FAST, SLOW, *map(Random, range(4))):
        assert front([way.priced(price) for way in ways]) == front(Assigner(block, degree).ways(price))


COLUMN_THEN_ROW = [*["columns"] * 3, "rows", *["columns"] * 2, "rows"]


def linears(block: BlockRecord, way: Assignment) -> list[str]:
    return [name.split(":")[0] for one, name in zip(block.operators, way.names, strict=True) if one.kind == "linear"]


def test_column_then_row_comes_out_on_fast_links_and_replication_on_slow_ones() -> None:
    block = llama()
    fast, slow = Assigner(block, 2).ways(FAST)[0], Assigner(block, 2).ways(SLOW)[0]
    assert linears(block, fast) == COLUMN_THEN_ROW
    assert next(name for one, name in zip(block.operators, fast.names, strict=True) if one.kind == "attention") == "heads:2"
    assert [move.kind for move in fast.moves] == ["reduce", "reduce"]
    assert fast.kv_heads == 1 and 2 * fast.weights == block.weights + 2 * 32
    assert not slow.is_divided and not slow.moves and slow.weights == block.weights and slow.kv_heads == 2


def test_the_largest_models_on_described_hardware() -> None:
    """They need a config only."""
    record, hardware = model_record(LLAMA_405B, name="405b"), load_hardware("h100x8")
    assert record.parameters == 405_853_388_800 and record.layers == ("block_0",) * 126
    assert record.max_positions == 131072 and record.kv_elements == 2 * 8 * 128
    times, collectives = OperatorTimes(hardware, "bfloat16"), Collectives(hardware)
    for degree in (2, 8):
        price = PassCosts(times, collectives, requests=[1], tokens=[8], context=4096).of_one(0, 0, range(degree))
        (best,) = Assigner(record.blocks["block_0"], degree).ways(price)
        assert linears(record.blocks["block_0"], best) == COLUMN_THEN_ROW and best.kv_heads == 8 // degree
        assert best.moves == (Move(kind="reduce", columns=16384),) * 2
        assert assignment(record.blocks["block_0"], best.names, degree).priced(price) == best
        head = Assigner(record.head, degree).ways(price)[0]
        assert head.moves == (Move(kind="combine", columns=128256 // degree),)


def test_nine_heads_in_three_groups_on_two_devices() -> None:  # case 23
    block = llama(layers=1, num_attention_heads=9, num_key_value_heads=3, hidden_size=72)
    best = Assigner(block, 2).ways(FAST)[0]
    attention = next(work for work in best.works if work.kind == "attention")
    assert (attention.heads, attention.kv_heads, best.kv_heads) == (6, 2, 2), "the first device has two groups of three heads"


def test_twenty_five_heads_on_two_devices() -> None:  # case 23
    block = llama(layers=1, num_attention_heads=25, num_key_value_heads=25, hidden_size=200)
    best = Assigner(block, 2).ways(FAST)[0]
    assert next(work for work in best.works if work.kind == "attention").heads == best.kv_heads == 13


def test_four_kv_heads_on_eight_devices() -> None:  # case 23
    block = llama(layers=1, num_key_value_heads=4, intermediate_size=512)
    best = Assigner(block, 8).ways(FAST)[0]
    assert best.kv_heads == 4 and best.is_divided, "attention is whole, and the MLP divided"
    assert kept_whole(block, 4) is None
    told = kept_whole(block, 8)
    assert told is not None and "4 query heads of block_0 share 4 KV heads" in told and "up to tp=4" in told


def test_more_devices_than_parts_are_refused() -> None:  # case 23
    block = llama()
    most = most_devices(block)
    assert most == 4 and why_not(block, 4) is None
    with pytest.raises(UsageError, match=r"tp=5 is not allowed: no operator of block_0 falls into more than 4 parts; give tp from 1 to 4"):
        Assigner(block, 5).ways(FAST)


def test_linears_that_read_one_value_are_one_launch() -> None:
    whole = assignment(llama(), ["replicated"] * 19, 1)
    assert [work.launches for work in whole.works if work.kind == "linear"] == [1, 0, 0, 1, 1, 0, 1]


def test_what_cannot_be_is_refused() -> None:
    block = llama()
    with pytest.raises(UsageError, match=r"partition\['block_0'\] has 2 names, but the place has 19 operators"):
        assignment(block, ["replicated"] * 2, 2)
    with pytest.raises(UsageError, match=r"partition\['block_0'\]='columns:3' of linear_default is not possible on 2 devices"):
        assignment(block, ["replicated", "columns:3", *["replicated"] * 17], 2)
