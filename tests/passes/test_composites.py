"""Other ways to write what passes know."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.passes.composites import write_out_composites
from flexspec.passes.normalize_linear import normalize_linear
from graph_cases import TokenModule, assert_same, flat_graph, graph_of


class Middle(TokenModule):
    def __init__(self, function: Callable[[TokenModule, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.mT.swapaxes(1, 2).movedim(0, 1).movedim(1, 0) + m.weight.expand_as(x),
        lambda m, x: torch.cat(x.unflatten(-1, (2, 4)).view_as(x).tensor_split(2, -1)[::-1], -1).narrow(-1, 1, 4).tile(2).square(),
        lambda m, x: torch.einsum("bti,btj->btij", x, x).flatten(2)[..., :8],
    ],
)
def test_each_is_written_out(function: Callable[[TokenModule, Tensor], Tensor]) -> None:
    module = Middle(function)
    model = graph_of(module)
    assert write_out_composites(model) >= 1 and write_out_composites(model) == 0
    assert_same(flat_graph(module), module)


LINEAR: dict[str, Callable[[TokenModule, Tensor], Tensor]] = {
    "weight [in, out]": lambda m, x: torch.einsum("btd,de->bte", x, m.extra.weight),
    "weight [out, in], first": lambda m, x: torch.einsum("ed, btd -> bte", m.extra.weight, x),
    "weight [in, heads, dim]": lambda m, x: torch.einsum("btd,dhe->bthe", x, m.extra.weight.view(8, 2, 4)).flatten(2),
    "weight [heads, dim, out]": lambda m, x: torch.einsum("bthe,hed->btd", x.unflatten(-1, (4, 2)), m.extra.weight.view(4, 2, 8)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_einsum_with_a_weight_is_a_linear(name: str) -> None:
    module = Middle(LINEAR[name])
    model = flat_graph(module)
    normalize_linear(model)
    operators = count_operators(model.module)
    assert operators["aten.linear.default"] == 2 and operators.keys() <= {
        "aten.linear.default",
        "aten.embedding.default",
        "aten.reshape.default",
    }
    assert_same(model, module)


def test_einsum_of_heads_is_a_product() -> None:
    def attended(m: TokenModule, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (2, 4))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, q).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, q).flatten(2)

    module = Middle(attended)
    model = graph_of(module)
    assert write_out_composites(model) == 2
    assert count_operators(model.module)["aten.matmul.default"] == 2
    ids = torch.arange(12).view(2, 6) % 11
    with torch.no_grad():
        torch.testing.assert_close(model.module(ids, ids), module(ids, ids))
