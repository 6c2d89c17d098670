import torch
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.passes.normalize_linear import normalize_linear
from graph_cases import TokenModule, assert_same, flat_graph


class Products(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        batch, length = position_ids.shape
        y = torch.addmm(self.weight, x.view(-1, 8), self.extra.weight)
        return (torch.mm(y, self.extra.weight) + torch.matmul(y, self.table.weight[:8])).view(batch, length, 8) + x


class NearMisses(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        batch, length = position_ids.shape
        scaled = torch.addmm(self.weight, x.view(-1, 8), self.extra.weight, alpha=2.0).view(batch, length, 8)
        return scaled * torch.matmul(x, self.weight)[..., None]


def test_products_become_linears() -> None:
    module = Products()
    model = flat_graph(module)
    assert normalize_linear(model) == (3, 3)
    counts = count_operators(model.module)
    assert counts["aten.linear.default"] == 4
    assert not {"aten.addmm.default", "aten.mm.default", "aten.matmul.default"} & set(counts)
    assert_same(model, module)


def test_two_graphs_of_one_module_agree_on_where_a_weight_comes_from() -> None:
    module = Products()
    origins = []
    for _ in range(2):
        model = flat_graph(module)
        normalize_linear(model)
        origins.append([model.origin(node.args[1]) for node in model.nodes(torch.ops.aten.linear.default)])
    assert origins[0] == origins[1]
    assert origins[0][0] == origins[0][1] != origins[0][2]


def test_scaled_products_and_vectors_are_left_alone() -> None:
    module = NearMisses()
    model = flat_graph(module)
    assert normalize_linear(model) == (0, 0)
    assert_same(model, module)
