"""The rotary embedding of GPT-OSS, written half by half."""

import pytest
import torch
from torch import Tensor, nn

from expert_models import expert_model
from flexspec.ir.capture import capture
from flexspec.ir.ops import ROPE
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.manager import run_passes
from flexspec.passes.outer_product import outer_product
from flexspec.passes.rope_of_halves import recognise_rope_of_halves
from graph_cases import graph_logits, graph_of, prompt, reference_logits


def test_queries_and_keys_of_every_layer_share_two_tables() -> None:
    module = expert_model("gpt_oss")
    model = capture(module, name="gpt_oss")
    run_passes(model, (canonicalize, outer_product, flatten_tokens))
    assert recognise_rope_of_halves(model) == (4, 4)
    assert len({node.args[1:] for node in model.nodes(ROPE)}) == 1
    torch.testing.assert_close(graph_logits(model, prompt(200)), reference_logits(module, prompt(200)), atol=1e-4, rtol=1e-4)


class Turned(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.table = nn.Embedding(300, 24)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.table(input_ids).unflatten(-1, (2, 12))  # [batch, tokens, heads, dim]
        angles = position_ids[:, :, None, None] * torch.arange(1, 7) / 30
        cos, sin = angles.cos(), angles.sin()
        a, b = torch.split(x, 6, dim=-1) if self.form == "split" else x.chunk(2, dim=-1)
        if self.form == "backwards":
            a, b = b, a
        total = a * cos + b * sin if self.form == "mixed up" else sin * a + cos * b
        return torch.cat((a * cos - b * sin, total), dim=-1).flatten(-2)


@pytest.mark.parametrize(("form", "matches", "expected"), [("chunk", 1, 1), ("split", 1, 1), ("backwards", 0, 0), ("mixed up", 0, 1)])
def test_only_a_rotation_is_recognised(form: str, matches: int, expected: int) -> None:
    module = Turned(form).eval()
    model = graph_of(module)
    run_passes(model, (canonicalize, flatten_tokens))
    assert recognise_rope_of_halves(model) == (matches, expected)
    assert len(model.nodes(ROPE)) == matches
    torch.testing.assert_close(graph_logits(model, prompt(9)), reference_logits(module, prompt(9)), atol=1e-5, rtol=1e-5)
