"""Attention with keys and values of unlike sizes."""

import pytest
import torch
from torch import Tensor, nn

from flexspec.ir.graph import fake
from flexspec.ir.ops import ATTENTION
from flexspec.passes.head_sizes import equal_head_sizes
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import SERVING
from graph_cases import TokenModule, assert_same, flat_graph


class Sized(TokenModule):
    def __init__(self, value_dim: int) -> None:
        super().__init__()
        self.values, self.out = nn.Linear(8, 2 * value_dim), nn.Linear(2 * value_dim, 8)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        q = x.view(*position_ids.shape, 2, 4)
        v = self.values(x).view(*position_ids.shape, 2, -1)
        return self.out(ATTENTION(q, q, v, 0.5, None, None, None).flatten(2))


@pytest.mark.parametrize("value_dim", [1, 3, 5, 11])
def test_the_smaller_ones_get_zeros(value_dim: int) -> None:
    module = Sized(value_dim)
    model = flat_graph(module)
    assert equal_head_sizes(model) == 1
    (attention,) = model.nodes(ATTENTION)
    assert {int(fake(one).shape[-1]) for one in attention.args[:3]} == {max(value_dim, 4)}
    assert isinstance(fake(model.logits).shape[0], torch.SymInt)
    assert_same(model, module)
    with torch.no_grad():
        run_passes(model, SERVING)
    assert_same(model, module)


def test_those_of_one_size_are_left() -> None:
    model = flat_graph(Sized(4))
    assert equal_head_sizes(model) == 0
