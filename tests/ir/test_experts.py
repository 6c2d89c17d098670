"""Capture of experts: one operator a layer, what it does found out by trying it."""

import pytest
import torch
from torch import Tensor, nn

from expert_models import MODELS, expert_model
from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.ops import ROUTED_EXPERTS
from graph_cases import graph_logits, prompt, reference_logits

QUICK = ("mixtral", "gpt_oss")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in MODELS])
def test_the_graph_says_what_the_module_says(name: str) -> None:
    module = expert_model(name)
    graph, ids = capture(module, name=name), prompt(23)
    experts = graph.nodes(ROUTED_EXPERTS)
    assert len(experts) == (1 if name.endswith("dense_layer") else 2)
    expected = ("clamped_swish", [1.702, 7.0]) if name == "gpt_oss" else ("silu", [])
    assert all((node.args[9], node.args[10]) == expected for node in experts)
    torch.testing.assert_close(graph_logits(graph, ids), reference_logits(module, ids), atol=1e-4, rtol=1e-4)
    assert module.config._experts_implementation != "flexspec", "the module itself is left as it is"


@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", *(pytest.param(name, marks=pytest.mark.slow) for name in ("relu", "gelu"))])
def test_other_activations_are_found_out(activation: str) -> None:
    module, ids = expert_model("mixtral", hidden_act=activation, num_hidden_layers=1), prompt(9)
    graph = capture(module, name="mixtral")
    names = {"gelu_pytorch_tanh": "gelu_tanh"}
    assert graph.nodes(ROUTED_EXPERTS)[0].args[9] == names.get(activation, activation)
    torch.testing.assert_close(graph_logits(graph, ids), reference_logits(module, ids), atol=1e-4, rtol=1e-4)


def test_experts_that_are_not_understood_are_named() -> None:
    with pytest.raises(UsageError, match=r"MixtralExperts has experts whose gate is none that is supported: silu, gelu"):
        capture(expert_model("mixtral", hidden_act="tanh", num_hidden_layers=1), name="mixtral")
    module = expert_model("mixtral", num_hidden_layers=1)
    experts = module.model.layers[0].mlp.experts
    experts.has_gate = False
    with pytest.raises(UsageError, match=r"experts without a gate.*supported are experts of a gate, an up and a down projection"):
        capture(module, name="mixtral")
    experts.has_gate, experts.has_post_expert_norm = True, True
    with pytest.raises(UsageError, match="with a norm behind them"):
        capture(module, name="mixtral")


class WithExperts(nn.Module):
    """A module of one's own around a layer of Hugging Face's."""

    def __init__(self) -> None:
        super().__init__()
        given = expert_model("mixtral", num_hidden_layers=1).model
        self.table, self.block, self.head = given.embed_tokens, given.layers[0].mlp, nn.Linear(32, 11)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return self.head(self.block(self.table(input_ids)))


def test_experts_are_found_in_any_module() -> None:
    module = WithExperts().eval()
    graph = capture(module, name="mine")
    assert len(graph.nodes(ROUTED_EXPERTS)) == 1
    torch.testing.assert_close(graph_logits(graph, prompt(9)), reference_logits(module, prompt(9)), atol=1e-5, rtol=1e-5)
