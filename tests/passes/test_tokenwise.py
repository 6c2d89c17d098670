"""The proof that requests can share a pass."""

import pytest
import torch
from torch import Tensor

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelFacts, ModelGraph
from flexspec.ir.ops import ATTENTION, GATED_ACTIVATION
from flexspec.passes.manager import run_passes
from flexspec.passes.outline import outline
from flexspec.passes.output_rows import output_rows
from flexspec.passes.pipeline import RECOGNITION, SERVING
from flexspec.passes.tokenwise import largest_position, prove_tokenwise
from flexspec.passes.tree_attention import lower_attention
from graph_cases import TokenModule, captured, flat_graph, served
from tiny_models import FAMILIES, Family, tiny


class Attends(TokenModule):
    def attend(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4)
        return ATTENTION(heads, heads, heads, 0.5, None, None, None).reshape(*position_ids.shape, 8)


class Alone(Attends):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.attend(x, position_ids) * position_ids[..., None]


PASSES = (lower_attention, output_rows, outline, prove_tokenwise)


def with_extreme(source: str, vocab_size: int = 11) -> ModelGraph:
    """A flat graph into which the largest of all token ids or positions found its way, as through a faulty pass."""
    model = flat_graph(Alone())
    model.facts = ModelFacts(name="x", num_layers=None, vocab_size=vocab_size)
    users = list(model.placeholder(source).users)
    largest = model.emit(torch.ops.aten.max.default, (model.placeholder(source),), before=users[0])
    mixed = model.emit(torch.ops.aten.minimum.default, (model.placeholder(source), largest), before=users[0])
    for user in users:
        user.replace_input_with(model.placeholder(source), mixed)
    model.finish()
    return model


@pytest.mark.parametrize("vocab_size", [11, 2])
@pytest.mark.parametrize("source", ["token_ids", "position_ids"])
def test_mixing_is_refused_and_named(source: str, vocab_size: int) -> None:
    model = with_extreme(source, vocab_size)
    with torch.no_grad(), pytest.raises(UsageError, match=r"^model x: operator max\w* \(aten.max.default\) mixes tokens outside attention"):
        run_passes(model, PASSES)


def test_mixing_inside_a_block_is_found() -> None:
    model = served("llama")[1]
    block = model.module.get_submodule("block_0")
    (gated,) = block.graph.find_nodes(op="call_function", target=GATED_ACTIVATION)
    with block.graph.inserting_after(gated):
        mixed = block.graph.call_function(torch.ops.aten.flip.default, (gated, [0]))
    mixed.meta["val"] = gated.meta["val"]
    gated.replace_all_uses_with(mixed, delete_user_cb=lambda user: user is not mixed)
    block.recompile()
    with torch.no_grad(), pytest.raises(UsageError, match=r"operator flip\w* \(aten.flip.default\) mixes tokens"):
        prove_tokenwise(model)


@pytest.mark.parametrize("vocab_size", [11, 2])
def test_a_token_wise_module_passes(vocab_size: int) -> None:
    model = flat_graph(Alone())
    model.facts = ModelFacts(name="x", num_layers=None, vocab_size=vocab_size)
    with torch.no_grad():
        run_passes(model, PASSES)
    assert model.notes[-1].matches > 3


@pytest.mark.parametrize("family", FAMILIES)
def test_each_kind_of_block_is_looked_into(family: Family) -> None:
    model = served(family)[1]
    with torch.no_grad():
        compared = prove_tokenwise(model)
    outside = sum(node.op == "call_function" for node in model.graph.nodes)
    inside = sum(node.op == "call_function" for node in model.module.get_submodule("block_0").graph.nodes)
    lists = 2 if family == "gpt2" else 0  # a split, and the attention, are no values that are compared
    assert outside < compared <= outside + inside and compared >= outside + inside - 1 - lists


@pytest.mark.parametrize(("family", "limit"), [("llama", None), ("mistral", None), ("opt", 512), ("gpt2", 512)])
def test_largest_position(family: Family, limit: int | None) -> None:
    assert largest_position(captured(family)[1]) in (limit, None)
    assert largest_position(served(family)[1]) == limit


def test_weights_that_are_not_numbers_do_not_pass_for_mixing() -> None:
    module = tiny("llama")
    with torch.no_grad():
        module.lm_head.weight[:] = float("nan")
        run_passes(capture(module, name="x"), (*RECOGNITION, *SERVING))
