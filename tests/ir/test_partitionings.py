"""What operators declare, and that graphs which are divided so say the same."""

import random
from typing import Literal

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from expert_models import expert_model
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph, depends_on, fake
from flexspec.ir.ops import ATTENTION, COMBINE, REDUCE, REPARTITION, ROUTED_EXPERTS
from flexspec.ir.ops.partitionings import partitionings
from flexspec.ir.partition import PARTIAL, REPLICATED, Partitioning, sharded
from flexspec.passes.blocks import find_blocks
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.search.assign import assignment
from flexspec.passes.search.divided_place import DividedPlace, all_units
from flexspec.passes.search.records import BlockRecord, block_record
from flexspec.passes.shard import Share, shard
from graph_cases import TokenModule, captured, copied, flat_graph, graph_logits, prompt
from parallel_cases import gloo_groups, on_ranks
from tiny_models import Family

_aten = torch.ops.aten
NINE_HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}


def flat(family: Family | Literal["mixtral"], **overrides: int) -> ModelGraph:
    model = capture(expert_model(family), name=family) if family == "mixtral" else captured(family, **overrides)[1]
    run_passes(model, FLAT)
    return model


def names(node: fx.Node, *units: int) -> list[str]:
    return [one.name for one in partitionings(node, units)]


def named(node: fx.Node, name: str, *units: int) -> Partitioning:
    return next(one for one in partitionings(node, units) if one.name == name)


def test_operators_of_a_block() -> None:
    model = flat("llama")
    nodes = find_blocks(model).layers[0].nodes
    offered = [(str(node.target).split(".")[1], names(node, 2, 4)[1:]) for node in nodes]
    columns, rows, heads = ["columns:2", "columns:4"], ["columns:2", "rows:2", "columns:4", "rows:4"], ["heads:2", "heads:4"]
    assert offered == [
        ("rms_norm", []),
        ("linear", rows),
        ("reshape", [*heads, "partial"]),
        ("linear", rows),
        ("reshape", ["heads:2", "partial"]),
        ("linear", rows),
        ("reshape", ["heads:2", "partial"]),
        ("rope", heads),
        ("rope", ["heads:2"]),
        ("attention", ["heads:2"]),
        ("reshape", [*columns, "partial"]),
        ("linear", rows),
        ("add", [*columns, "partial"]),
        ("rms_norm", []),
        ("linear", rows),
        ("linear", rows),
        ("gated_activation", columns),
        ("linear", rows),
        ("add", [*columns, "partial"]),
    ]


def test_a_linear_is_divided_by_columns_or_by_rows() -> None:
    linear = next(node for node in flat("gpt2").nodes(_aten.linear.default) if "mlp_c_proj" in str(node.args[1]))
    assert partitionings(linear, [4])[1:] == [
        Partitioning(name="columns:4", inputs=(REPLICATED,), weights=(0, 0), result=sharded(4)),
        Partitioning(name="rows:4", inputs=(sharded(4),), weights=(1, -1), result=PARTIAL),
    ]
    assert names(linear, 3) == ["replicated"], "neither 32 nor 128 columns fall into thirds"


def test_experts_are_divided_as_gated_mlps() -> None:
    experts = flat("mixtral").nodes(ROUTED_EXPERTS)[0]
    assert partitionings(experts, [16, 5])[1:] == [
        Partitioning(name="inner:16", inputs=(REPLICATED,) * 3, weights=(1, 1, 2), result=PARTIAL, inside=16)
    ]
    whole = [model_part.shape for model_part in map(fake, experts.args[3:8:2])]
    assert whole == [(5, 48, 32), (5, 48, 32), (5, 32, 48)]


def test_heads_stay_with_the_kv_head_that_they_share() -> None:
    attention = flat("llama", **NINE_HEADS).nodes(ATTENTION)[0]
    assert names(attention, 3, 9, 2) == ["replicated", "heads:3"]
    rope = attention.args[0]
    assert isinstance(rope, fx.Node)
    assert named(rope, "heads:3", 3).inputs == (sharded(3), REPLICATED, REPLICATED)


class PointWise(TokenModule):
    """Operands that broadcast, options by keyword, and what is no linear map."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        y = F.gelu(x * self.weight, approximate="tanh") + position_ids[..., None] * self.weight
        return torch.sub(y / 2, x, alpha=3) * x.tanh() + 1


def test_point_wise_operators() -> None:
    model = flat_graph(PointWise())
    tokens = [node for node in find_all(model) if node.target not in (_aten.linear.default, _aten.embedding.default)]
    found = {str(node.target).split(".")[1]: names(node, 4)[1:] for node in tokens if len(fake(node).shape) == 2}
    assert found["gelu"] == ["columns:4"] and found["tanh"] == ["columns:4"] and found["div"] == found["sub"] == ["columns:4", "partial"]
    by_weight, _, product = model.nodes(_aten.mul.Tensor)
    assert named(by_weight, "columns:4", 4).weights == (0,) and named(by_weight, "partial").weights == (None,)
    assert names(product, 4) == ["replicated", "columns:4"], "a product of two summands is none"
    assert [names(node, 4)[-1] for node in model.nodes(_aten.add.Tensor)] == ["partial", "columns:4"]


def find_all(model: ModelGraph) -> list[fx.Node]:
    return [node for node in model.graph.nodes if node.op == "call_function"]


def drawn(block: BlockRecord, degree: int, generator: random.Random) -> list[str]:
    """Random partitionings that fit together."""
    place = DividedPlace(block, degree, all_units(block, degree))
    have = dict.fromkeys(range(len(block.inputs)), place.bit(REPLICATED))
    chosen = []
    for operator, options in zip(block.operators, place.options, strict=True):
        for option in generator.sample(options, len(options)):
            if place.brought(operator.reads, option.needs, attempt := dict(have)) is not None:
                break
        have = attempt | {len(have): option.gives}
        chosen.append(option.name)
    return chosen


@pytest.mark.parametrize(("family", "degree", "overrides"), [("llama", 2, NINE_HEADS), ("gpt2", 3, {}), ("mixtral", 2, {})])
def test_graphs_divided_at_random_say_the_same(family: Family | Literal["mixtral"], degree: int, overrides: dict[str, int]) -> None:
    model, ids = flat(family, **overrides), prompt(7)
    expected = graph_logits(model, ids)
    groups = gloo_groups(degree)
    for seed in range(6):
        places, moves, weights = [], 0, 0
        blocks = find_blocks(model)
        for name, nodes in (("embedding", blocks.prologue), ("block_0", blocks.layers[0].nodes), ("head", blocks.epilogue)):
            record = block_record(name, nodes)
            chosen = drawn(record, degree, random.Random(seed))
            if seed % 2:
                chosen[-1] = "replicated"
            way, times = assignment(record, chosen, degree), len(blocks.layers) if name == "block_0" else 1
            moves, weights = moves + times * len(way.moves), weights + times * way.weights
            places.append((record, chosen))
        parts = [divided(model, places, Share(rank=rank, size=degree, group=groups[rank].name)) for rank in range(degree)]
        inserted = len(parts[0].nodes(COMBINE, REDUCE, REPARTITION))
        # A stream that is left divided may go on as it is.
        assert inserted == moves if seed % 2 else inserted <= moves, "what is priced is what is done"
        assert elements(parts[0]) == weights
        for logits in on_ranks(degree, lambda rank, parts=parts: graph_logits(parts[rank], ids)):
            torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


def elements(part: ModelGraph) -> int:
    """Of the parameters of operators that depend on tokens."""
    tokens = depends_on(part.graph, part.token_inputs)
    used = [node for node in part.graph.find_nodes(op="get_attr") if not tokens.isdisjoint(node.users)]
    return sum(part.parameter(node).numel() for node in {node.target: node for node in used}.values())


def divided(model: ModelGraph, places: list[tuple[BlockRecord, list[str]]], share: Share) -> ModelGraph:
    """One rank's graph."""
    part = copied(model)
    blocks = find_blocks(part)
    (embedding, of_embedding), (block, of_block), (head, of_head) = places
    pairs = [(node, one, name) for node, one, name in zip(blocks.prologue, embedding.operators, of_embedding, strict=True)]
    for layer in blocks.layers:
        pairs += zip(layer.nodes, block.operators, of_block, strict=True)
    pairs += zip(blocks.epilogue, head.operators, of_head, strict=True)
    chosen = {node: next(way for way in operator.partitionings if way.name == name) for node, operator, name in pairs}
    with torch.no_grad():
        shard(part, chosen, share)
    return part
