"""Hidden states as further outputs of a captured graph, and features as a further input."""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION
from flexspec.ir.verify import GraphError, verify
from graph_cases import Head, TokenModule, graph_logits, graph_outputs, prompt, reference_logits, submodule_outputs
from tiny_models import tiny

STATES = ("model.norm", "model.layers.0.self_attn", "model.layers.1", "model.embed_tokens", "model.layers.1")


def test_hidden_states_are_what_the_submodules_return() -> None:
    module = tiny("llama")
    module.model.norm.register_forward_hook(lambda *_: None)
    model = capture(module, name="llama", hidden_states=STATES)
    assert [len(part._forward_hooks) for part in module.modules() if part._forward_hooks] == [1], "the module's own"
    verify(model, "captured")
    assert len(model.hidden_states) == 5 and model.facts.vocab_size == 288 and model.feature_size == 0
    ids, positions = torch.stack([prompt(7), prompt(7, 1)]), torch.arange(7).expand(2, 7)
    with torch.no_grad():
        logits, *states = model.module(ids, positions)
    for row in (0, 1):
        torch.testing.assert_close(logits[row], reference_logits(module, ids[row]), atol=2e-5, rtol=1e-5)
        for got, expected in zip(states, submodule_outputs(module, STATES, ids[row]), strict=True):
            torch.testing.assert_close(got[row], expected, atol=2e-5, rtol=1e-5)


class Twins(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"first": x, "second": x}


class Odd(TokenModule):
    """Has submodules that are no hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Identity()
        self.rows = nn.Flatten(0, 1)
        self.whole = nn.Flatten(1)
        self.mask = nn.Threshold(0, 1)
        self.twins = Twins()

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        x = self.extra(self.extra(self.twins(x)["first"])) + self.rows(x).view(x.shape) + self.whole(x).view(x.shape)
        return x + self.mask(position_ids)[..., None]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("extras", "model mine: hidden state 'extras' is no submodule of Odd; some that it has: 'extra'"),
        ("", "is no submodule of Odd; some that it has: 'table', 'head', 'extra', 'unused'"),
        ("weight", "hidden state 'weight' is no submodule"),
        ("unused", "hidden state 'unused': that submodule runs 0 times in a pass"),
        ("extra", "hidden state 'extra': that submodule runs 2 times in a pass"),
        ("rows", "must be floats [batch, tokens, size]"),
        ("whole", "must be floats [batch, tokens, size]"),
        ("mask", "hidden state 'mask' is torch.int64 of shape"),
        ("twins", "hidden state 'twins': that submodule returns dict"),
    ],
)
def test_what_is_no_hidden_state_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        capture(Odd(), name="mine", hidden_states=["table", name])
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_features_are_the_third_input() -> None:
    module = Head().eval()
    model = capture(module, name="head", feature_size=12, hidden_states=["layer"])
    verify(model, "captured")
    assert [str(node.target) for node in model.graph.find_nodes(op="placeholder")] == ["token_ids", "position_ids", "features"]
    assert model.feature_size == 12 and model.token_inputs == [model.placeholder("token_ids"), model.placeholder("features")]
    assert model.facts.patterns["rms_norm"] == 3  # not the one that the pass leaves out
    assert len({str(dim) for name in ("token_ids", "features") for dim in fake(model.placeholder(name)).shape[:2]}) == 2
    ids, features = prompt(6), torch.randn(6, 12)
    with torch.no_grad():
        expected = module(ids[None], torch.arange(6)[None], features[None])[0]
    logits, state = graph_outputs(model, ids, features)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-5)
    assert state.shape == (6, 16)
    check_that_other_rows_are_noticed(model)


def check_that_other_rows_are_noticed(model: ModelGraph) -> None:
    (state,) = model.hidden_states
    with model.graph.inserting_after(state):
        half = model.graph.call_function(torch.ops.aten.slice.Tensor, (state, 1, 0, 1))
    half.meta["val"] = fake(state)[:, :1]
    model.graph.output_node().replace_input_with(state, half)
    with pytest.raises(GraphError, match="a hidden state must have a row for each token"):
        verify(model)


def test_a_module_must_take_the_features() -> None:
    with pytest.raises(UsageError, match=r"must take input_ids and features; it takes \['input_ids', 'position_ids'\]"):
        capture(Odd(), name="mine", feature_size=3)


class AroundALayer(TokenModule):
    """A layer of Hugging Face's outside any of its models."""

    def __init__(self) -> None:
        super().__init__()
        config = tiny("llama", hidden_size=8, head_dim=4, num_attention_heads=2).config
        config._attn_implementation = "sdpa"
        self.layer = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        result: Tensor = self.layer(x, position_embeddings=self.rotary(x, position_ids))
        return result


def test_attention_of_single_layers_is_found() -> None:
    module = AroundALayer().eval()
    model = capture(module, name="mine")
    assert len(model.nodes(ATTENTION)) == 1 and module.layer.self_attn.config._attn_implementation == "sdpa"
    ids = torch.arange(6)
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids), atol=2e-5, rtol=1e-5)
