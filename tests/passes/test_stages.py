"""Stages of a pipeline, run one after the other, do what the whole graph does, bit for bit."""

import pytest
import torch
from torch import Tensor

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.ir.verify import verify
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT, FUSION, SERVING, SERVING_STAGE
from flexspec.passes.stages import StatePlace, cut_stage, stage_bounds
from graph_cases import captured, copied, graph_outputs, prompt
from parallel_cases import layers_of
from tiny_models import Family, tiny

STATES = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.1.mlp", "lm_head")


def _stages(model: ModelGraph, bounds: list[tuple[int, int]]) -> list[ModelGraph]:
    stages = []
    for stage in range(len(bounds)):
        part = copied(model)
        cut_stage(part, layers_of(part), bounds, stage)
        stages.append(part)
    return stages


def _in_turn(stages: list[ModelGraph], ids: Tensor) -> list[list[Tensor]]:
    """What each stage gives."""
    results: list[list[Tensor]] = []
    for stage in stages:
        results.append(graph_outputs(stage, ids, results[-1][0] if results else None))
    return results


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_stages_in_turn_are_the_whole(family: Family) -> None:
    _, model = captured(family)
    ids = prompt(11)
    run_passes(model, FLAT)
    stages = _stages(model, [(0, 1), (1, 2)])
    assert [stage.feature_size for stage in stages] == [0, 32]
    assert [stage.facts.num_layers for stage in stages] == [1, 1]
    (logits,) = _in_turn(stages, ids)[-1]
    assert torch.equal(logits, graph_outputs(model, ids)[0])


def test_stages_go_through_the_serving_pipeline() -> None:
    model = capture(tiny("llama", layers=4), name="llama")
    run_passes(model, FLAT)
    first, middle, last = _stages(model, [(0, 1), (1, 2), (2, 4)])
    with torch.no_grad():
        for stage, passes in ((first, SERVING_STAGE), (middle, SERVING_STAGE), (last, SERVING)):
            run_passes(stage, FUSION)
            verify(stage, "recognised")
            run_passes(stage, passes)
            verify(stage, "serving")
    assert [name for name, _ in last.module.named_children()] == ["block_0"], "its layers are of one kind"
    assert not first.inputs("output_rows") and last.inputs("output_rows")


def test_a_hidden_state_is_given_by_the_stage_that_computes_it() -> None:
    model = capture(tiny("llama"), name="llama", hidden_states=STATES)
    ids = prompt(9)
    run_passes(model, FLAT)
    cut = copied(model)
    places = cut_stage(cut, layers_of(cut), [(0, 1), (1, 2)], 1)
    assert places == [StatePlace(stage=stage, size=size) for stage, size in ((0, 32), (0, 32), (1, 32), (1, 32), (1, 288))]
    results = _in_turn(_stages(model, [(0, 1), (1, 2)]), ids)
    given = [state for outputs in results for state in outputs[1:]]
    for state, expected in zip(given, graph_outputs(model, ids)[1:], strict=True):
        torch.testing.assert_close(state, expected)


def test_layers_are_divided_evenly_unless_told_otherwise() -> None:
    assert stage_bounds("x", 5, (), 2) == [(0, 3), (3, 5)]
    assert stage_bounds("x", 5, (1, 4), 2) == [(0, 1), (1, 5)]


def test_a_plan_for_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"stage_layers=\[3, 3\] makes 6 layers, but model x has 5"):
        stage_bounds("x", 5, (3, 3), 2)
    with pytest.raises(UsageError, match=r"pp=6 is not allowed: model x has 5 layers, so give at most 5"):
        stage_bounds("x", 5, (), 6)
