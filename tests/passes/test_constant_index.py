"""Indexing by constants that follow each other, and transposed parameters."""

import torch
from torch import Tensor, nn

from flexspec.ir.capture import capture
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.constant_index import simplify_moves

_aten = torch.ops.aten


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        parts = self.embed(input_ids).unflatten(-1, (4, 2))
        whole = torch.cat([parts[:, :, [-1]], parts[:, :, [1, 2]], parts[:, :, [3, 0]][:, :, :1]], dim=2).flatten(2)
        return whole @ self.head.weight.T + position_ids[..., None]


def test_neighbours_become_slices_and_transposes_parameters() -> None:
    module = Parts()
    model = capture(module, name="parts")
    canonicalize(model)
    assert simplify_moves(model) == 3
    assert len(model.nodes(_aten.index.Tensor)) == 1 and not model.nodes(_aten.numpy_T.default)
    ids, positions = torch.arange(6).view(2, 3), torch.arange(3).repeat(2, 1)
    with torch.no_grad():
        torch.testing.assert_close(model.module(ids, positions), module(ids, positions))
