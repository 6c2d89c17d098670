"""Hidden states and features through all passes."""

import operator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION
from flexspec.ir.verify import verify
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.manager import run_passes
from flexspec.passes.output_rows import output_rows
from flexspec.passes.pipeline import RECOGNITION, SERVING
from flexspec.passes.tokenwise import prove_tokenwise
from graph_cases import Head, TokenModule, graph_outputs, prompt, reference_logits, submodule_outputs
from tiny_models import Family, tiny

BETWEEN = ("model.layers.0", "model.layers.2", "model.norm")
INSIDE = ("model.layers.1.mlp", "model.layers.1.mlp.act_fn", "model.layers.1.self_attn", "model.layers.0.self_attn.k_proj", "lm_head")
CASES: list[tuple[Family, tuple[str, ...], int]] = [
    ("llama", BETWEEN, 1),
    ("llama", INSIDE, 3),
    ("gpt2", ("transformer.wte", "transformer.wpe", "transformer.h.1", "transformer.h.2.mlp.act", "transformer.ln_f"), 2),
]


@pytest.mark.parametrize(("family", "states", "kinds"), CASES, ids=["between layers", "inside layers", "gpt2"])
def test_every_pass_keeps_them(family: Family, states: tuple[str, ...], kinds: int) -> None:
    module = tiny(family, layers=3)
    model = capture(module, name=family, hidden_states=states)
    ids = prompt(9)
    expected = [reference_logits(module, ids), *submodule_outputs(module, states, ids)]

    def check(graph: ModelGraph) -> None:
        verify(graph)
        for got, wanted in zip(graph_outputs(graph, ids), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=3e-5, rtol=1e-5, msg=lambda text: f"after {graph.notes[-1].name}: {text}")

    with torch.no_grad():
        run_passes(model, (*RECOGNITION, *SERVING), after_each=check)
    verify(model, "serving")
    assert len(list(model.module.children())) == kinds and len(model.graph.find_nodes(op="call_module")) == 3
    # A block of one result gives it as it is.
    assert bool(model.nodes(operator.getitem)) == (kinds > 1)


class Block(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4)
        x = x + ATTENTION(heads, heads, heads, 0.5, None, None, None).reshape(*position_ids.shape, 8)
        return self.extra(F.layer_norm(x, (8,), self.weight))


def gathered(states: tuple[str, ...]) -> ModelGraph:
    model = capture(Block().eval(), name="mine", hidden_states=states)
    run_passes(model, (*RECOGNITION[: RECOGNITION.index(flatten_tokens) + 1], output_rows))
    ids = torch.arange(6)
    given = {"token_ids": ids, "position_ids": ids, "output_rows": torch.tensor([4, 1], dtype=torch.int32)}
    with torch.no_grad():
        logits, *hidden = model.module(*(given[str(node.target)] for node in model.graph.find_nodes(op="placeholder")))
    module = Block()
    torch.testing.assert_close(logits, reference_logits(module, ids)[[4, 1]], atol=1e-5, rtol=1e-5)
    for got, wanted in zip(hidden, submodule_outputs(module, states, ids), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    return model


@pytest.mark.parametrize(
    ("states", "above"),
    [
        (("table",), torch.ops.aten.add.Tensor),  # far from the head: the gather is where it would be without
        (("extra",), torch.ops.aten.linear.default),  # what is gathered is a hidden state itself
        (("head", "extra"), torch.ops.aten.linear.default),  # and here it is the logits
    ],
)
def test_the_gather_leaves_all_rows_of_a_hidden_state(states: tuple[str, ...], above: object) -> None:
    model = gathered(states)
    (gather,) = model.nodes(torch.ops.aten.index_select.default)
    assert gather.args[0].target == above and fake(model.logits).shape[0] == 2
    assert (gather is model.logits) == ("head" in states)
    assert all(fake(state).shape[0] != 2 for state in model.hidden_states)


def head() -> tuple[Head, ModelGraph]:
    module = Head().eval()
    return module, capture(module, name="head", feature_size=12, hidden_states=["layer"])


def test_features_pass_through_everything() -> None:
    module, model = head()
    ids, features = prompt(9), torch.randn(9, 12)
    with torch.no_grad():
        expected = module(ids[None], torch.arange(9)[None], features[None])[0]

    def check(graph: ModelGraph) -> None:
        verify(graph)
        assert fake(graph.placeholder("features")).shape[-1] == graph.feature_size == 12
        torch.testing.assert_close(graph_outputs(graph, ids, features)[0], expected, atol=1e-5, rtol=1e-5)

    with torch.no_grad():
        run_passes(model, (*RECOGNITION, *SERVING), after_each=check)
    verify(model, "serving")
    assert len(model.graph.find_nodes(op="call_module")) == 1
    check_that_mixed_features_are_noticed(model)


def check_that_mixed_features_are_noticed(model: ModelGraph) -> None:
    features = model.placeholder("features")
    users = list(features.users)
    turned = model.emit(torch.ops.aten.flip.default, (features, [0]), before=users[0])
    for user in users:
        user.replace_input_with(features, turned)
    model.finish()
    with pytest.raises(UsageError, match=r"operator flip\w* \(aten.flip.default\) mixes tokens outside attention"):
        prove_tokenwise(model)


def test_a_hidden_state_that_mixes_tokens_is_noticed() -> None:
    _, model = head()
    with torch.no_grad():
        run_passes(model, (*RECOGNITION, *SERVING))
    (state,) = model.hidden_states
    turned = model.emit(torch.ops.aten.flip.default, (state, [0]), before=model.graph.output_node())
    model.graph.output_node().args = ((model.logits, turned),)
    model.finish()
    with torch.no_grad(), pytest.raises(UsageError, match=r"operator flip\w* \(aten.flip.default\) mixes tokens outside attention"):
        prove_tokenwise(model)
