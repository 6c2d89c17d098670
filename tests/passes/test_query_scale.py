import pytest
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.ir.ops import ATTENTION
from flexspec.passes.query_scale import fold_query_scale
from graph_cases import TokenModule, assert_same, captured, flat_graph


class Scaled(TokenModule):
    def scaled(self, x: Tensor) -> Tensor:
        return x * 0.25

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        q = self.scaled(self.extra(x)).view(*position_ids.shape, 2, 4)
        k = (x * 3.0).view(*position_ids.shape, 2, 4)
        return ATTENTION(q, k, k, 2.0, None, None, None).reshape(*position_ids.shape, 8)


class ScaledByWeight(Scaled):
    def scaled(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_constant_joins_the_scale() -> None:
    module = Scaled()
    model = flat_graph(module)
    assert fold_query_scale(model) == 1
    (attention,) = model.nodes(ATTENTION)
    assert attention.args[3] == 0.5
    assert count_operators(model.module)["aten.mul.Tensor"] == 1  # the keys' own
    assert_same(model, module)


def test_a_weight_does_not() -> None:
    module = ScaledByWeight()
    model = flat_graph(module)
    assert fold_query_scale(model) == 0
    assert_same(model, module)


def test_opt_needs_it() -> None:
    from flexspec.passes.manager import run_passes
    from flexspec.passes.pipeline import RECOGNITION

    model = captured("opt")[1]
    run_passes(model, RECOGNITION)
    assert [node.args[3] for node in model.nodes(ATTENTION)] == [pytest.approx(8**-0.5)] * 2
