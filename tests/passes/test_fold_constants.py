import torch
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.ir.ops import RMS_NORM
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.fold_constants import fold_constants
from flexspec.passes.norm import recognise_norm
from graph_cases import TokenModule, assert_same, graph_of


class GemmaNorm(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.25) * (1.0 + self.weight.float())


class Scaled(TokenModule):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.5))

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.scale * x / self.scale.sqrt()


def test_weights_of_norms_are_computed_once() -> None:
    module = GemmaNorm()
    model = graph_of(module)
    canonicalize(model)
    assert fold_constants(model) == 1
    flatten_tokens(model)
    assert recognise_norm(model) == (1, 1)
    weight = model.nodes(RMS_NORM)[0].args[1]
    assert torch.equal(model.parameter(weight), 1 + module.weight)
    assert model.origin(weight)[0] == "aten.add.Tensor", "models that share the weight share what was made from it"
    assert_same(model, module)


def test_scalar_tensors_become_numbers() -> None:
    module = Scaled()
    model = graph_of(module)
    assert fold_constants(model) == 3
    assert {arg for node in model.nodes(torch.ops.aten.mul.Tensor) for arg in node.args} >= {3.5}
    assert not [node for node in model.graph.find_nodes(op="get_attr") if node.meta["val"].dim() == 0]
    assert "aten.sqrt.default" not in count_operators(model.module)
    assert_same(model, module)


class Parts(TokenModule):
    """Weights that are parts, sums and products of parameters."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        first, second = self.extra.weight.chunk(2)
        adapted = self.extra.weight + 2.0 * (first.T @ second)
        return torch.nn.functional.linear(x @ self.extra.weight.T, torch.cat((second, adapted[:4]))) @ adapted[:, :8].mT


def test_weights_made_of_weights_are_computed_once() -> None:
    module = Parts()
    model = graph_of(module)
    assert fold_constants(model) >= 8
    products = model.nodes(torch.ops.aten.linear.default, torch.ops.aten.matmul.default)
    assert len(products) == 4 and all(node.args[1].op == "get_attr" for node in products)
    transposed = products[0].args[1]
    assert model.parameter(transposed).data_ptr() == module.extra.weight.data_ptr(), "a part of a weight is no copy"
    assert model.origin(transposed)[0].startswith("aten."), "models that share the weight share what was made from it"
    assert_same(model, module)
