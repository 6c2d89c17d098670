"""The whole search: from a model's record and hardware to a choice that holds together."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig

from flexspec.acceptance import AcceptanceTable
from flexspec.errors import UsageError
from flexspec.parallel import OWN_DEVICE
from flexspec.passes.search.assign import assignment
from flexspec.passes.search.case import Case, Solved
from flexspec.passes.search.cost import CostModel
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.hardware import load_hardware
from flexspec.passes.search.memory import room
from flexspec.passes.search.records import ModelRecord, model_record
from flexspec.passes.search.result import SearchResult
from flexspec.passes.search.run import search_strategy
from flexspec.passes.search.space import THROUGHPUT, Workload
from flexspec.tree_shape import PLAIN


def llama(name: str, hidden: int, intermediate: int, heads: int, kv_heads: int, layers: int, vocab: int = 32000) -> ModelRecord:
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_hidden_layers=layers,
        vocab_size=vocab,
        max_position_embeddings=8192,
    )
    return model_record(config, name=name)


@pytest.fixture(scope="module")
def large() -> ModelRecord:
    return llama("llama-70b", 8192, 28672, 64, 8, 80)


@pytest.fixture(scope="module")
def small() -> ModelRecord:
    return llama("llama-1b", 2048, 5632, 32, 4, 22)


def seen(*names: str, chance: float) -> AcceptanceTable:
    table = AcceptanceTable()
    for name in names:
        for depth in range(1, 9):
            for rank in range(8):
                table.of(name).restore((-1, rank, depth), 1e5, chance * 1e5 if rank == 0 else 0.0)
    return table


def found(model: ModelRecord, hardware: str, drafters: list[DrafterRecord], workload: Workload, chance: float = 0.6) -> SearchResult:
    names = [one.name for one in drafters]
    return search_strategy(model, drafters, load_hardware(hardware), workload, seen(*names, chance=chance), top=4)


@pytest.mark.parametrize(
    ("hardware", "workload"),
    [
        ("h200x1", Workload()),
        ("a10gx4", Workload(batch=24, objective=THROUGHPUT, max_tree=8)),
        ("a10gx4-2nodes", Workload(batch=6)),
    ],
    ids=["h200x1", "a10gx4", "a10gx4-2nodes"],
)
def test_the_choice_is_never_worse_than_the_default_and_unused_devices_are_told(
    small: ModelRecord, hardware: str, workload: Workload
) -> None:
    """A "best" strategy must not be slower than one device without speculation, by its own measure."""
    for chance in (0.02, 0.8):
        drafters = [DrafterRecord(name="same", model=small), DrafterRecord(name="suffix")]
        result = found(small, hardware, drafters, workload, chance)
        content = json.loads(json.dumps(result.to_json()))
        choice, baseline, plan = content["predicted"], content["baseline"], result.strategy.parallel
        assert baseline is not None and (baseline["dp"], baseline["pp"], baseline["tp"], baseline["tree_size"]) == (1, 1, 1, 0)
        assert choice["ms_per_token"] <= baseline["ms_per_token"] or workload.objective == THROUGHPUT
        assert choice["tokens_per_s"] >= baseline["tokens_per_s"]
        assert content["unused_devices"] == load_hardware(hardware).num_devices - plan.world_size >= 0
        assert result.incremental is not None and result.incremental.strategy.tree == PLAIN
        assert result.incremental.predicted.tokens_per_s <= choice["tokens_per_s"]
        if chance == 0.02:  # a copy of the model as its own draft that is hardly ever right
            assert "same" not in result.strategy.drafters


def test_a_choice_holds_together(large: ModelRecord, small: ModelRecord) -> None:
    drafters = [DrafterRecord(name="draft", model=small), DrafterRecord(name="suffix")]
    result = found(large, "h100x8", drafters, Workload(batch=4), 0.7)
    assert result.baseline is None and result.choice.choice["tp"] > 1  # 141 GB
    assert len({(*one.strategy.drafters, *sorted(one.choice["placement"].items()), one.choice["tp"], one.choice["pp"], one.choice["dp"],
                 one.choice["micro_batches"]) for one in result.ranking}) == len(result.ranking) == 4  # fmt: skip
    for one in (*result.ranking, *result.pareto):
        predicted, plan = one.predicted, one.strategy.parallel
        assert sum(predicted.parts.values()) == pytest.approx(predicted.step_ms)
        assert predicted.ms_per_token * predicted.tokens_per_step == pytest.approx(predicted.step_ms)
        assert predicted.tokens_per_s * predicted.ms_per_token == pytest.approx(1e3 * one.batch)
        assert predicted.memory_gb_per_device <= room(load_hardware("h100x8")) / 1e9
        assert sum(plan.stage_layers) == 80 and len(plan.stage_layers) == plan.pp
        assert plan.model == large.fingerprint and plan.world_size <= 8
        for place, names in plan.partition.items():
            block = {"embedding": large.embedding, "head": large.head, **large.blocks}[place]
            assert assignment(block, names, plan.tp).is_divided
    scores = [one.predicted.ms_per_token for one in result.ranking]
    assert scores == sorted(scores)
    assert any("several drafters" in note for note in result.notes) and any("estimate" in note for note in result.notes)


def test_more_is_accepted_and_the_tree_grows(small: ModelRecord) -> None:
    sizes = [
        found(small, "h200x1", [DrafterRecord(name="suffix")], Workload(), chance).choice.choice["tree_size"]
        for chance in (0.001, 0.3, 0.9)
    ]
    assert sizes[0] == 0 < sizes[1] < sizes[2]


def test_a_head_stays_beside_the_model_and_weights_that_are_shared_count_once(large: ModelRecord, small: ModelRecord) -> None:
    head = DrafterRecord(name="head", model=small, reads_states=True, shares_embedding=True, shares_head=True)
    own = found(large, "h100x8", [replace(head, reads_states=False)], Workload(), 0.8)
    tied = found(large, "h100x8", [head], Workload(), 0.8)
    places = [one.choice["placement"].get("head") for one in (*own.ranking, *own.pareto)]
    assert OWN_DEVICE in places
    assert all(one.choice["placement"].get("head") != OWN_DEVICE for one in (*tied.ranking, *tied.pareto))


def test_what_cannot_be_is_said(large: ModelRecord, small: ModelRecord) -> None:
    with pytest.raises(UsageError, match=r"llama-70b does not fit hardware h200x1: its weights take 138 GB .* 1 device has 127 GB"):
        found(large, "h200x1", [], Workload())
    with pytest.raises(UsageError, match=r"max_latency_ms=0\.001 can't be kept: the fastest strategy takes .* ms a token; give at least"):
        found(small, "h200x1", [], Workload(max_latency_ms=0.001))
    with pytest.raises(UsageError, match="context=8000 and new_tokens=500 are not allowed: model llama-1b has 8192 positions"):
        found(small, "h200x1", [], Workload(context=8000, new_tokens=500))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"objective": "speed"}, "objective='speed' is not allowed: give one of latency, throughput"),
        ({"batch": 0}, "batch=0 is not allowed: give a whole number from 1"),
        ({"context": 1.5}, r"context=1\.5 is not allowed"),
        ({"new_tokens": True}, "new_tokens=True"),
        ({"max_latency_ms": -1}, "max_latency_ms=-1 is not allowed: give a number of milliseconds above 0"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype='int4' is not allowed: give one of auto, fp8"),
        ({"max_tree": 10_000}, "max_tree=10000 is not allowed: give a whole number from 0 to"),
    ],
)
def test_a_workload_that_cannot_be(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Workload(**values)  # type: ignore[arg-type]


def test_throughput_within_a_latency_bound(small: ModelRecord) -> None:
    free = found(small, "a10gx4", [], Workload(batch=64, objective=THROUGHPUT))
    bound = free.choice.predicted.ms_per_token * 0.6
    bounded = found(small, "a10gx4", [], Workload(batch=64, objective=THROUGHPUT, max_latency_ms=bound))
    assert bounded.choice.predicted.ms_per_token <= bound
    assert bounded.choice.predicted.tokens_per_s < free.choice.predicted.tokens_per_s
    assert "latency bound" in bounded.binding and bounded.pruned["latency bound"] > 0


def test_an_8_bit_cache_is_priced_where_it_is_given_and_never_chosen(large: ModelRecord) -> None:
    workload = Workload(batch=64, context=4000, objective=THROUGHPUT)
    auto, fp8 = found(large, "h100x8", [], workload), found(large, "h100x8", [], replace(workload, kv_cache_dtype="fp8"))
    assert {one.choice["kv_cache_dtype"] for one in (*auto.ranking, *auto.pareto)} == {"auto"}
    assert fp8.choice.choice["kv_cache_dtype"] == "fp8" and any("computes other numbers" in note for note in fp8.notes)
    assert fp8.choice.predicted.tokens_per_s > auto.choice.predicted.tokens_per_s
    same = [next(one for one in result.pareto if one.choice["devices"] == 8 and one.batch == 1) for result in (auto, fp8)]
    kv = [one.predicted.memory_parts["KV cache"] for one in same]
    assert same[0].choice["tp"] == same[1].choice["tp"] and kv[0] == pytest.approx(2 * kv[1])


def test_memory_binds_where_a_larger_batch_would_pay(large: ModelRecord) -> None:
    half = replace(large, layers=large.layers[:40], name="llama-35b")
    result = found(half, "a10gx4", [], Workload(batch=256, context=4000, objective=THROUGHPUT))
    assert result.binding.startswith("memory: ") and "does not fit" in result.binding and result.choice.batch < 256


@pytest.mark.parametrize("hardware", ["a10gx4", "a10gx4-2nodes"])
def test_bounds_side_by_side_are_those_of_each_case(small: ModelRecord, hardware: str) -> None:
    workload = Workload(batch=6, objective=THROUGHPUT, max_tree=4)
    drafters = [DrafterRecord(name="same", model=small), DrafterRecord(name="suffix")]
    costs = CostModel(small, drafters, load_hardware(hardware), workload, seen("same", "suffix", chance=0.6))
    compared = 0
    for columns in costs.columns():
        for place in range(0, len(columns.shapes), 4):
            case = columns.case(place)
            bounds, fits = case.bounds()
            assert (case.shape, case.option, case.number) == (columns.shapes[place], columns.option, columns.members)
            assert columns.fitting[place] == np.count_nonzero(fits) and columns.trees == len(fits)
            assert columns.least[place] == pytest.approx(bounds[fits].min() if fits.any() else np.inf)
            assert columns.unfit[place] == pytest.approx(bounds[~fits].min() if not fits.all() else np.inf)
            compared += 1
    assert compared > 100


@pytest.mark.parametrize(("hardware", "layers", "least"), [("h100x8", 80, 100_000), ("h100x8-8nodes", 126, 1_000_000)])
def test_few_of_many_candidates_are_worked_out(
    monkeypatch: pytest.MonkeyPatch, large: ModelRecord, small: ModelRecord, hardware: str, layers: int, least: int
) -> None:
    """What makes a search take a second and not an hour: bounds leave 37 of 291,858 and 18 of 3,425,688; 200 is room for other prices."""
    worked_out, cut = [], Case.cut

    def counted(case: Case, *arguments: Any, **options: Any) -> Solved | None:
        worked_out.append(case)
        return cut(case, *arguments, **options)

    monkeypatch.setattr(Case, "cut", counted)
    drafters = [DrafterRecord(name="draft", model=small), DrafterRecord(name="suffix")]
    result = found(replace(large, layers=large.layers[:1] * layers), hardware, drafters, Workload())
    assert result.candidates > least and len(worked_out) < 200
