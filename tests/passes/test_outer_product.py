import torch
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.outer_product import outer_product
from graph_cases import TokenModule, assert_same, graph_of


class Frequencies(TokenModule):
    """Rotary angles as some versions of transformers compute them."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        expanded = self.weight[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        angles = (expanded @ position_ids[:, None, :].float()).transpose(1, 2)
        return x * angles.cos()


class MatrixProduct(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x @ self.extra.weight + x.unsqueeze(-1).matmul(x.unsqueeze(-2)).sum(-1)


def test_frequencies_times_positions() -> None:
    module = Frequencies()
    model = graph_of(module)
    canonicalize(model)
    assert outer_product(model) == (1, 1)
    counts = count_operators(model.module)
    assert "aten.matmul.default" not in counts and "aten.expand.default" not in counts
    assert_same(model, module)
    flatten_tokens(model)
    assert_same(model, module)


def test_only_products_of_one_term() -> None:
    module = MatrixProduct()
    model = graph_of(module)
    assert outer_product(model) == (1, 1)
    assert count_operators(model.module)["aten.matmul.default"] == 1
    assert_same(model, module)


def test_a_vector_is_no_outer_product() -> None:
    class Vector(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return x * torch.matmul(x, self.weight)[..., None]

    assert outer_product(graph_of(Vector())) == (0, 0)
