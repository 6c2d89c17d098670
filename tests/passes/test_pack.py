import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.errors import UsageError
from flexspec.ir.cost import count_operators
from flexspec.ir.ops import PACKED_LINEAR
from flexspec.passes.manager import run_passes
from flexspec.passes.pack import pack_linears
from graph_cases import TokenModule, assert_same, flat_graph


class Linears(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.linear(self.extra(x), self.extra.weight)


def test_linears_are_packed_with_and_without_bias() -> None:
    module = Linears()
    model = flat_graph(module)
    assert pack_linears(model) == (3, 3)
    assert count_operators(model.module) == {"aten.embedding.default": 1, "flexspec.packed_linear.default": 3}
    assert [node.args[2] is None for node in model.nodes(PACKED_LINEAR)] == [False, True, False]
    assert_same(model, module)


def test_a_computed_weight_is_reported() -> None:
    module = Linears()
    model = flat_graph(module)
    first = model.nodes(torch.ops.aten.linear.default)[0]
    assert isinstance(first.args[1], torch.fx.Node)
    first.replace_input_with(first.args[1], model.emit(torch.ops.aten.mul.Tensor, (first.args[1], 1.0), before=first))
    with pytest.raises(UsageError, match="pack_linears matched 2 of 3 places"):
        run_passes(model, (pack_linears,))
    assert len(model.nodes(torch.ops.aten.linear.default)) == 1
    assert_same(model, module)
