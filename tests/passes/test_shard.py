"""One rank's share of a graph: what it holds, and what lies between its operators."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION, COMBINE, REDUCE, REPARTITION, ROPE
from flexspec.ir.partition import PARTIAL, Partitioning, sharded
from flexspec.ir.verify import verify
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT, FUSION
from flexspec.passes.shard import Share, shard
from graph_cases import captured, copied
from parallel_cases import column_then_row
from tiny_models import Family

_aten = torch.ops.aten


@cache
def _flattened(family: Family, overrides: tuple[tuple[str, int], ...]) -> ModelGraph:
    _, model = captured(family, **dict(overrides))
    run_passes(model, FLAT)
    return model


def _flat(family: Family = "llama", **overrides: int) -> ModelGraph:
    return copied(_flattened(family, tuple(overrides.items())))


def _shared(family: Family, rank: int, size: int = 2, **overrides: int) -> ModelGraph:
    model = _flat(family, **overrides)
    with torch.no_grad():
        shard(model, column_then_row(model), Share(rank=rank, size=size, group="group"))
        run_passes(model, FUSION)
    verify(model, "recognised")
    return model


def _operators(model: ModelGraph, *targets: object) -> int:
    return len(model.nodes(*targets))


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_a_layer_that_is_divided_by_columns_and_then_by_rows_has_two_sums(family: Family) -> None:
    whole = _flat(family)
    run_passes(whole, FUSION)
    for rank in (0, 1):
        model = _shared(family, rank)
        assert _operators(model, REDUCE) == 2 * 2 and _operators(model, COMBINE) == 1 and not model.nodes(REPARTITION)
        assert _operators(model, _aten.linear.default) == _operators(whole, _aten.linear.default), "linears are fused as ever"
        half, full = (graph.nodes(ATTENTION)[0] for graph in (model, whole))
        for place in range(3):
            assert 2 * fake(half.args[place]).shape[1] == fake(full.args[place]).shape[1]
        assert fake(model.logits).shape[1] == 288


def test_a_bias_counts_once() -> None:
    biases = [
        sum(node.args[2] is not None for node in _shared("opt", rank).nodes(_aten.linear.default) if len(node.args) > 2) for rank in (0, 1)
    ]
    assert biases == [8, 4]  # of rows: the output of attention and of the MLP, in two layers


def test_groups_of_heads_are_divided_unevenly() -> None:
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}
    shapes = []
    for rank in (0, 1):
        attention = _shared("llama", rank, **heads).nodes(ATTENTION)[0]
        shapes.append(tuple(int(fake(attention.args[place]).shape[1]) for place in range(3)))
    assert shapes == [(6, 2, 2), (3, 1, 1)]


def test_parameters_are_views_of_the_model_s() -> None:
    module, _ = captured("llama")
    model = _flat()
    shard(model, column_then_row(model), Share(rank=1, size=2, group="group"))
    memory = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    weights = [model.parameter(node) for node in model.graph.find_nodes(op="get_attr")]
    matrices = [weight for weight in weights if weight.dim() == 2]
    assert len(matrices) == 2 * 7 + 2
    assert all(weight.untyped_storage().data_ptr() in memory for weight in matrices)


def test_a_whole_value_is_cut_where_a_part_is_wanted_and_only_once() -> None:
    model = _flat()
    (down, *_) = [node for node in model.nodes(_aten.linear.default) if "down_proj" in str(node.args[1].target)]  # type: ignore[union-attr]
    by_rows = Partitioning(name="rows", inputs=(sharded(4),), weights=(1,), result=PARTIAL)
    assert shard(model, {down: by_rows}, Share(rank=0, size=2, group="group")) == 2
    (cut,) = model.nodes(REPARTITION)
    (total,) = model.nodes(REDUCE)
    assert cut.args[1:] == (0, 32) and total.args[1:] == (2, "group")
    # Three linears read one norm, and all of them want half of its columns.
    model = _flat()
    norm = model.nodes(torch.ops.flexspec.rms_norm.default)[0]
    chosen = dict.fromkeys(norm.users, replace(by_rows, name="rows"))
    assert shard(model, chosen, Share(rank=1, size=2, group="group")) == 1 + 3
    assert model.nodes(REPARTITION)[0].args[1:] == (16, 16)


def test_more_ranks_than_units_are_refused() -> None:
    model = _flat()
    with pytest.raises(UsageError, match=r"tp=4 is not allowed: .* is divided by 2 .*; give at most 2 ranks"):
        shard(model, column_then_row(model), Share(rank=0, size=4, group="group"))


def test_units_that_are_cut_alike_need_nothing_in_between() -> None:
    model = _flat()
    chosen = column_then_row(model)
    for node, how in chosen.items():
        if how.result == PARTIAL and how.inputs == (sharded(8),):
            chosen[node] = replace(how, inputs=(sharded(4),))
    assert shard(model, chosen, Share(rank=0, size=2, group="group")) == 2 * 2 + 1


def test_a_whole_value_is_no_summand() -> None:
    model = _flat()
    add = model.nodes(_aten.add.Tensor)[-1]
    how = Partitioning(name="summands", inputs=(PARTIAL, PARTIAL), weights=(), result=PARTIAL)
    with pytest.raises(UsageError, match=r"the partition wants .* partial for .* where it is replicated"):
        shard(model, {add: how}, Share(rank=0, size=2, group="group"))


def test_heads_move_before_they_are_turned() -> None:
    model = _flat()
    chosen = {node: how for node, how in column_then_row(model).items() if node.target != ROPE}
    shard(model, chosen, Share(rank=1, size=2, group="group"))
    for attention in model.nodes(ATTENTION):
        for turned in attention.args[:2]:
            assert turned.target == ROPE and turned.args[0].target == REPARTITION  # type: ignore[union-attr]
    assert len(model.nodes(ROPE)) == 4, "the whole heads are not turned besides"
