"""Which submodule's output the output matrix reads."""

import pytest
import torch
from torch import nn
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from flexspec.errors import UsageError
from flexspec.models.output_norm import output_norm_name
from tiny_models import FAMILIES, Family, tiny

NAMES = {"opt": "model.decoder.final_layer_norm", "gpt2": "transformer.ln_f"}
SIZES = {"vocab_size": 288, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: Family) -> None:
    model = tiny(family)
    name = output_norm_name(model)
    assert name == NAMES.get(family, "model.norm")
    seen: list[torch.Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad():
        logits = model(torch.tensor([[3, 4, 5]])).logits
    hook.remove()
    assert torch.equal(seen[0] @ model.get_output_embeddings().weight.T, logits)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_projection_after_the_layers() -> None:
    assert output_norm_name(tiny("opt", word_embed_proj_dim=16)) == "model.decoder.project_out"


@pytest.mark.parametrize(
    ("config", "kind"),
    [(CohereConfig(**SIZES, logit_scale=0.25), CohereForCausalLM), (GraniteConfig(**SIZES, logits_scaling=8.0), GraniteForCausalLM)],
)
def test_logits_that_are_scaled(config: object, kind: type[nn.Module]) -> None:
    with pytest.raises(UsageError, match=f"{kind.__name__} does more to its logits than its output matrix does.*: give another model"):
        output_norm_name(kind(config))


def test_an_output_matrix_with_a_bias() -> None:
    model = tiny("llama", layers=1)
    model.lm_head = nn.Linear(32, 288)
    with pytest.raises(UsageError, match="the output matrix of LlamaForCausalLM has a bias"):
        output_norm_name(model)


def test_no_output_matrix() -> None:
    with pytest.raises(UsageError, match="Linear has no output matrix"):
        output_norm_name(nn.Linear(2, 2))


def test_an_output_matrix_that_is_not_called() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny("llama", layers=1)

        def get_output_embeddings(self) -> nn.Module:
            return nn.Linear(32, 288, bias=False)

        def forward(self, input_ids: torch.Tensor) -> object:
            return self.inner(input_ids)

    with pytest.raises(UsageError, match="Around does more to its logits"):
        output_norm_name(Around())
