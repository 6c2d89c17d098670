"""Every rule of the IR, broken once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from flexspec.ir.graph import ModelFacts, ModelGraph
from flexspec.ir.ops import (
    ATTENTION,
    COMBINE,
    GATED_ACTIVATION,
    PACKED_LINEAR,
    REDUCE,
    REPARTITION,
    RMS_NORM,
    ROPE,
    ROUTED_EXPERTS,
    TREE_ATTENTION,
)
from flexspec.ir.verify import ABSENT, RULES, GraphError, verify
from graph_cases import captured, served
from tiny_models import FAMILIES, Family

_aten = torch.ops.aten


def one_call(
    target: Callable[..., Any], shapes: list[tuple[int, ...] | None], *constants: Any, result: tuple[int, ...] = (5, 8)
) -> ModelGraph:
    """A graph of one call whose operands have these shapes, whether or not the operator could run on them."""
    graph = fx.Graph()
    args: list[Any] = []
    for i, shape in enumerate(shapes):
        node = None if shape is None else graph.placeholder(f"input_{i}")
        if node is not None:
            node.meta["val"] = torch.empty(shape)
        args.append(node)
    call = graph.call_function(target, (*args, *constants))
    call.meta["val"] = torch.empty(result)
    graph.output(call)
    return ModelGraph(module=fx.GraphModule({}, graph), facts=ModelFacts(name="x", num_layers=1, vocab_size=8))


HEADS, KV = (5, 4, 8), (5, 2, 8)
CACHE = [(1, 64, 2, 8)] * 2
BATCH = [(5,)] * 5 + [(5, 1), (1, 1)]
TREE_CONSTANTS = (64, 0, 1.0, None, None, None)

GOOD = [
    one_call(ATTENTION, [HEADS, KV, KV], 1.0, None, None, None),
    one_call(RMS_NORM, [(5, 8), (8,)], 1e-5),
    one_call(ROPE, [HEADS, (5, 6), (5, 6)]),
    one_call(GATED_ACTIVATION, [(5, 8), (5, 8)], "relu"),
    one_call(PACKED_LINEAR, [(5, 3), (8, 3), (8,)]),
    one_call(_aten.linear.default, [(5, 3), (8, 3)]),
    one_call(TREE_ATTENTION, [HEADS, KV, KV, None, None, *CACHE, *BATCH], *TREE_CONSTANTS),
    one_call(REPARTITION, [(5, 12)], 4, 8),
    one_call(COMBINE, [(5, 4)], [4, 4], "group"),
    one_call(REDUCE, [(5, 8)], 2, "group"),
]

BROKEN = {
    "attention rank": one_call(ATTENTION, [(5, 8), (5, 8), (5, 8)], 1.0, None, None, None),
    "attention groups": one_call(ATTENTION, [HEADS, (5, 3, 8), (5, 3, 8)], 1.0, None, None, None),
    "attention head size": one_call(ATTENTION, [HEADS, (5, 2, 4), (5, 2, 4)], 1.0, None, None, None),
    "attention k unlike v": one_call(ATTENTION, [HEADS, KV, (5, 1, 8)], 1.0, None, None, None),
    "norm weight": one_call(RMS_NORM, [(5, 8), (5,)], 1e-5),
    "rope rank": one_call(ROPE, [(5, 8), (5, 8), (5, 8)]),
    "rope tables": one_call(ROPE, [HEADS, (5, 8), (5, 6)]),
    "rope odd": one_call(ROPE, [HEADS, (5, 7), (5, 7)]),
    "rope too wide": one_call(ROPE, [HEADS, (5, 10), (5, 10)]),
    "gate unlike up": one_call(GATED_ACTIVATION, [(5, 8), (5, 4)], "relu"),
    "gate activation": one_call(GATED_ACTIVATION, [(5, 8), (5, 8)], "swish"),
    "linear input": one_call(PACKED_LINEAR, [(5, 3), (8, 4), (8,)]),
    "linear bias": one_call(PACKED_LINEAR, [(5, 3), (8, 3), (3,)]),
    "linear rank": one_call(_aten.linear.default, [(5, 3), (3,)]),
    "tree rank": one_call(TREE_ATTENTION, [(1, *HEADS), (1, *KV), (1, *KV), None, None, *CACHE, *BATCH], *TREE_CONSTANTS),
    "tree groups": one_call(TREE_ATTENTION, [HEADS, (5, 3, 8), (5, 3, 8), None, None, *CACHE, *BATCH], *TREE_CONSTANTS),
    "tree tables": one_call(TREE_ATTENTION, [HEADS, KV, KV, (5, 8), None, *CACHE, *BATCH], *TREE_CONSTANTS),
    "columns past the end": one_call(REPARTITION, [(5, 8)], 6, 4),
    "nobody's columns": one_call(COMBINE, [(5, 8)], [4, 4], "group"),
    "experts by numbers that are no integers": one_call(
        ROUTED_EXPERTS, [(5, 8), (5, 2), (5, 2), (3, 6, 8), None, (3, 6, 8), None, (3, 8, 6), None], "silu", []
    ),
    "a sum of one": one_call(REDUCE, [(5, 8)], 1, "group"),
}


@pytest.mark.parametrize("model", GOOD, ids=lambda model: str(model.graph.output_node().args[0].target))
def test_good_calls_pass(model: ModelGraph) -> None:
    verify(model)


@pytest.mark.parametrize("case", list(BROKEN))
def test_broken_calls_are_named(case: str) -> None:
    call = BROKEN[case].graph.output_node().args[0]
    with pytest.raises(GraphError, match=f"^{call.name}: .* breaks the rule that") as caught:
        verify(BROKEN[case])
    assert str(call.target) in str(caught.value)


def test_every_operator_with_rules_is_broken_here() -> None:
    assert {model.graph.output_node().args[0].target for model in BROKEN.values()} == set(RULES)


def test_missing_fake_result() -> None:
    model = one_call(RMS_NORM, [(5, 8), (8,)], 1e-5)
    del model.graph.output_node().args[0].meta["val"]
    with pytest.raises(GraphError, match="no fake result"):
        verify(model)


@pytest.mark.parametrize("stage", list(ABSENT))
def test_operators_that_a_stage_removed(stage: str) -> None:
    for target in ABSENT[stage]:
        with pytest.raises(GraphError, match=f"left at stage {stage}"):
            verify(one_call(target, [(5, 8)]), stage)


@pytest.mark.parametrize("family", FAMILIES)
def test_real_graphs(family: Family) -> None:
    verify(captured(family)[1], "captured")
    model = served(family)[1]
    verify(model, "serving")
    with pytest.raises(GraphError):
        verify(model, "captured")


def test_calls_inside_blocks_are_checked() -> None:
    _, model = served("llama")
    block = model.module.get_submodule("block_0")
    (call,) = block.graph.find_nodes(op="call_function", target=GATED_ACTIVATION)
    call.update_arg(2, "swish")
    with pytest.raises(GraphError, match=f"^{call.name}: .*the activation is known"):
        verify(model)
