"""What the search chooses is what graphs can be divided by."""

import pytest
import torch
from transformers import LlamaConfig

from flexspec.ir.capture import capture
from flexspec.parallel import ParallelPlan
from flexspec.passes.divide import divide
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.divisions import Division, divisions, notes_on
from flexspec.passes.search.hardware import load_hardware
from flexspec.passes.search.hollow import hollow_model
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.records import ModelRecord, model_record
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.shard import Share

CONFIG = LlamaConfig(
    hidden_size=288, intermediate_size=768, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3, vocab_size=512
)


@pytest.fixture(scope="module")
def record() -> ModelRecord:
    return model_record(CONFIG, name="tiny")


def ways(record: ModelRecord, tp: int) -> list[Division]:
    hardware = load_hardware("a10gx4")
    times, links = OperatorTimes(hardware, "float32"), Collectives(hardware)
    return divisions(record, tp, [PassCosts(times, links, requests=[1], tokens=[4], context=64).of_one(0, 0, range(tp))])


def test_uneven_heads_are_divided_as_far_as_they_go(record: ModelRecord) -> None:
    """9 query heads in 3 KV groups: uneven on 2 devices, attention whole on 4."""
    assert 2 in {way.kv_heads for way in ways(record, 2)}
    assert {way.kv_heads for way in ways(record, 4)} == {3}
    assert not notes_on(record, [1, 2, 3])
    (note,) = notes_on(record, [2, 4])
    assert "tp=4: the 9 query heads of block_0 share 3 KV heads" in note


def test_a_graph_is_divided_as_the_search_says(record: ModelRecord) -> None:
    way = max(ways(record, 2), key=lambda way: (-way.kv_heads, -sum(place.weights for place in way.places.values())))
    assert set(way.partition) >= {"block_0", "head"}
    module, _ = hollow_model(CONFIG, "tiny")
    graph = capture(module, name="tiny", own_dtype=True)
    with torch.no_grad():
        run_passes(graph, FLAT)
    divide(graph, ParallelPlan(tp=2, partition=way.partition), stage=0, share=Share(rank=0, size=2, group="g"))
    note = graph.notes[-1]
    moves = sum(len(way.blocks[kind].moves) for kind in record.layers) + len(way.head.moves) + len(way.embedding.moves)
    assert (note.name, note.matches) == ("shard", moves)
