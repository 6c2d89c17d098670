"""Biases behind linears become the linears' own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexspec.passes.linear_bias import fold_bias
from graph_cases import TokenModule, assert_same, flat_graph

_aten = torch.ops.aten


class _Middle(TokenModule):
    """`function` of x [batch, tokens, 8], a matrix [8, 8] and a vector [8]."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.function(x + 0 * position_ids[..., None], self.extra.weight, self.weight)


@pytest.mark.parametrize(
    ("function", "matches"),
    [
        (lambda x, w, b: torch.nn.functional.linear(x, w) + b, 1),
        (lambda x, w, b: b + torch.nn.functional.linear(x, w), 1),
        (lambda x, w, b: torch.nn.functional.linear(x, w, b) + b, 0),
        (lambda x, w, b: torch.nn.functional.linear(x, w) + b[:1], 0),
        (lambda x, w, b: torch.add(torch.nn.functional.linear(x, w), b, alpha=2), 0),
        (lambda x, w, b: (y := torch.nn.functional.linear(x, w)) * (y + b), 0),
    ],
)
def test_what_is_a_bias(function: Callable[[Tensor, Tensor, Tensor], Tensor], matches: int) -> None:
    module = _Middle(function)
    model = flat_graph(module)
    assert fold_bias(model) == matches
    assert len(model.nodes(_aten.add.Tensor)) == 2 - matches, "positions are added too"
    assert_same(model, module)
