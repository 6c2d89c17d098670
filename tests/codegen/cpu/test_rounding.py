"""Positions are float32, and what they are multiplied with stays in the model's dtype."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flexspec.codegen.cpu.rounding import round_to
from flexspec.ir.cost import count_operators
from flexspec.ir.positions import position_values
from graph_cases import TokenModule, flat_graph, reference_logits


class Turned(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        x = x * (position_ids * 0.1).cos()[..., None] + x.flip(-1) * (position_ids * 0.1).sin()[..., None]
        return F.layer_norm(x, (8,), self.weight)


def test_results_are_rounded_where_positions_come_in() -> None:
    module = Turned()
    model = flat_graph(module)
    assert len(position_values(model)[1]) == 2
    round_to(model, torch.float32)
    assert "aten.to.dtype" not in count_operators(model.module)
    for name, value in list(model.module.named_buffers()):
        setattr(model.module, name, value.bfloat16())
    round_to(model, torch.bfloat16)
    ids = torch.arange(9)
    with torch.no_grad():
        result = model.module(ids, torch.arange(9))
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), reference_logits(module, ids), atol=0.05, rtol=0.05)
