import pytest
import torch
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.passes.canonicalize import canonicalize
from graph_cases import TokenModule, assert_same, graph_of


class Input(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        x = torch.nn.functional.dropout(x.to(torch.float32).contiguous(), 0.5, training=False)
        return (x * 1.0 + 0)[:, 0:].to("cpu").detach()


class NearMisses(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        wide = (x * 1.5 + 0.5).to(torch.float64)
        return (wide * (position_ids * 1.0)[..., None]).to(torch.float32)[..., :8:1] * 2


def test_what_tracing_leaves_goes() -> None:
    module = Input()
    model = graph_of(module)
    assert canonicalize(model) >= 5
    assert count_operators(model.module) == {"aten.embedding.default": 1, "aten.linear.default": 1}
    assert_same(model, module)


def test_what_does_something_stays() -> None:
    module = NearMisses()
    model = graph_of(module)
    canonicalize(model)
    counts = count_operators(model.module)
    assert counts["aten.to.dtype"] == 2 and counts["aten.mul.Tensor"] == 4 and counts["aten.add.Tensor"] == 1
    assert_same(model, module)


def test_unused_operators_go() -> None:
    class Unused(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            (position_ids.diff() != 1).cumsum(-1)
            return x

    model = graph_of(Unused())
    canonicalize(model)
    assert count_operators(model.module) == {"aten.embedding.default": 1, "aten.linear.default": 1}


@pytest.mark.parametrize("spread", ["repeat", "expand"])
def test_gathered_rows_are_an_embedding(spread: str) -> None:
    class Gathered(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            batch, width = position_ids.shape[0], self.rows.shape[1]
            if spread == "repeat":
                tables, index = self.rows.repeat(batch, 1, 1), position_ids.unsqueeze(-1).repeat(1, 1, width)
            else:
                tables, index = self.rows[None].expand(batch, -1, -1), position_ids[..., None].expand(-1, -1, width)
            return x + torch.gather(tables, 1, index)

    module = Gathered()
    module.rows = torch.nn.Parameter(torch.randn(40, 8))
    model = graph_of(module)
    canonicalize(model)
    assert count_operators(model.module)["aten.embedding.default"] == 2
    assert_same(model, module)


def test_other_gathers_stay() -> None:
    class Transposed(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return torch.gather(x, 2, (position_ids.clamp(max=7)).unsqueeze(-1).repeat(1, 1, 8))

    model = graph_of(Transposed())
    canonicalize(model)
    assert count_operators(model.module)["aten.gather.default"] == 1
