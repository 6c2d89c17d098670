"""A plan becomes what one rank runs; one that is for another model is refused by name."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import REDUCE
from flexspec.parallel import ParallelPlan
from flexspec.passes.blocks import find_blocks, fingerprint
from flexspec.passes.divide import divide
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.shard import ALONE, Share
from graph_cases import captured, copied
from parallel_cases import plan_of
from tiny_models import TINY_POSITIONS, Family

FIRST = Share(rank=0, size=2, group="group")


@cache
def _flattened(family: Family) -> ModelGraph:
    _, model = captured(family)
    run_passes(model, FLAT)
    return model


def _flat(family: Family = "llama") -> ModelGraph:
    return copied(_flattened(family))


def test_a_plan_of_one_rank_changes_nothing() -> None:
    model = _flat()
    before = str(model.graph)
    assert divide(model, ParallelPlan(dp=4), stage=0, share=ALONE).max_positions is None
    assert str(model.graph) == before


def test_stages_and_shares_go_together() -> None:
    model = _flat()
    plan = plan_of(copied(model), tp=2, pp=2)
    for stage, features in ((0, 0), (1, 32)):
        part = copied(model)
        with torch.no_grad():
            divide(part, plan, stage=stage, share=FIRST)
        assert part.feature_size == features and len(part.nodes(REDUCE)) == 2
        assert part.notes[-1].name == "shard" and part.notes[-1].matches == 2 + stage


def test_positions_that_an_early_stage_can_tell_apart_limit_all() -> None:
    model = _flat("opt")
    assert divide(model, ParallelPlan(pp=2), stage=1, share=ALONE).max_positions == TINY_POSITIONS


@pytest.mark.parametrize(
    ("place", "names", "message"),
    [
        ("block_7", ("replicated",), r"partition\['block_7'\] is for no place of model llama, which has block_0, embedding, head"),
        ("head", ("replicated",), r"partition\['head'\] has 1 names, but head of model llama has 2 operators"),
        ("head", ("replicated", "columns:7"), r"partition\['head'\] divides aten.linear.default as 'columns:7'.*give one of replicated"),
        ("head", ("replicated", "diagonally"), r"partition\['head'\] divides aten.linear.default as 'diagonally'"),
    ],
)
def test_a_partition_for_another_model_is_refused(place: str, names: tuple[str, ...], message: str) -> None:
    model = _flat()
    plan = plan_of(copied(model), tp=2)
    with pytest.raises(UsageError, match=message):
        divide(model, replace(plan, partition={**plan.partition, place: names}), stage=0, share=FIRST)


def test_layers_of_another_model_are_refused() -> None:
    with pytest.raises(UsageError, match=r"stage_layers=\[2, 3\] makes 5 layers, but model llama has 2"):
        divide(_flat(), ParallelPlan(pp=2, stage_layers=(2, 3)), stage=0, share=ALONE)


def test_the_fingerprint_of_another_model_is_refused() -> None:
    own, other = (fingerprint(find_blocks(_flat(family))) for family in ("llama", "opt"))
    divide(_flat(), ParallelPlan(pp=2, model=own), stage=0, share=ALONE)
    with pytest.raises(UsageError, match=f"its model='{other}' is not the fingerprint of llama, '{own}'"):
        divide(_flat(), ParallelPlan(pp=2, model=other), stage=0, share=ALONE)


def test_one_cache_can_t_hold_attention_that_is_divided_in_two_ways() -> None:
    _, model = captured("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    run_passes(model, FLAT)
    plan = plan_of(copied(model), tp=2)
    whole = {"block_1": ("replicated",) * len(plan.partition["block_1"])}
    with pytest.raises(UsageError, match="attention of model qwen2 differently in different blocks"):
        divide(model, replace(plan, partition={**plan.partition, **whole}), stage=0, share=FIRST)
