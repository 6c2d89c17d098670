"""Rotary embeddings that are not those of an attention's queries and keys both."""

import pytest
import torch
from torch import Tensor

from flexspec.ir.ops import ATTENTION, ROPE
from flexspec.passes.loose_rope import write_out_loose_rope
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import SERVING
from flexspec.passes.rope import recognise_rope
from graph_cases import TokenModule, assert_same, flat_graph


class Turned(TokenModule):
    """Queries are scaled after they are turned."""

    def __init__(self, width: int, interleaved: bool) -> None:
        super().__init__()
        self.width, self.interleaved = width, interleaved

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        angles = position_ids[..., None] * self.weight[: self.width // 2].detach().clone()
        angles = angles.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        heads = x.view(*position_ids.shape, 2, 4).transpose(1, 2)
        part = heads if self.width == 4 else heads[..., : self.width]
        half = self.width // 2
        pairs = torch.stack([-part[..., 1::2], part[..., ::2]], dim=-1).flatten(-2)
        turned = part * cos + (pairs if self.interleaved else torch.cat([-part[..., half:], part[..., :half]], dim=-1)) * sin
        k = turned if self.width == 4 else torch.cat([turned, heads[..., self.width :]], dim=-1)
        q, k, v = (one.transpose(1, 2) for one in (k * 1.5, k, heads))
        return ATTENTION(q, k, v, 0.5, None, None, None).flatten(2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [2, 4])
def test_they_are_written_out(width: int, interleaved: bool) -> None:
    module = Turned(width, interleaved)
    model = flat_graph(module)
    assert recognise_rope(model)[0] == 1 and len(model.nodes(ROPE)) == 1
    assert write_out_loose_rope(model) == 1 and not model.nodes(ROPE)
    assert_same(model, module)
    with torch.no_grad():
        run_passes(model, SERVING)
    assert_same(model, module)
