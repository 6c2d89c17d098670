from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.ir.ops import GATED_ACTIVATION
from flexspec.passes.gated_mlp import recognise_gated_mlp, recognise_gelu
from flexspec.passes.manager import run_passes
from graph_cases import TokenModule, assert_same, flat_graph


class Gated(TokenModule):
    def __init__(self, activation: Callable[[Tensor], Tensor], *, swapped: bool = False) -> None:
        super().__init__()
        self.activation, self.swapped = activation, swapped

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        gate, up = self.activation(self.extra(x)), x
        return up * gate if self.swapped else gate * up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize("swapped", [False, True])
def test_gates(name: str, swapped: bool) -> None:
    module = Gated(ACTIVATIONS[name], swapped=swapped)
    model = flat_graph(module)
    assert recognise_gated_mlp(model) == (1, 1)
    (gated,) = model.nodes(GATED_ACTIVATION)
    assert gated.args[2] == name
    counts = count_operators(model.module)
    assert not counts.keys() & {"aten.silu.default", "aten.relu.default", "aten.gelu.default", "aten.mul.Tensor"}
    assert_same(model, module)


class Ungated(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.silu(x) * self.weight + F.relu(x) * 2.0 + F.gelu(x) + F.gelu(x + 1) * x[..., :1]


def test_activations_without_a_gate_stay() -> None:
    module = Ungated()
    model = flat_graph(module)
    assert recognise_gated_mlp(model) == (0, 0)
    assert_same(model, module)


def test_a_gate_that_is_also_used_elsewhere_is_reported() -> None:
    class Shared(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            gate = F.silu(self.extra(x))
            return gate * x + gate

    module = Shared()
    model = flat_graph(module)
    run_passes(model, (recognise_gated_mlp,))
    assert (model.notes[-1].matches, model.notes[-1].expected) == (0, 1)
    assert_same(model, module)


class WrittenOut(TokenModule):
    factor = 0.044715

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + self.factor * torch.pow(x, 3.0))))


class OtherFactor(WrittenOut):
    factor = 0.05


class OtherOuter(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return 0.6 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def test_gelu_written_out() -> None:
    module = WrittenOut()
    model = flat_graph(module)
    assert recognise_gelu(model) == (1, 1)
    (gelu,) = model.nodes(torch.ops.aten.gelu.default)
    assert gelu.kwargs == {"approximate": "tanh"}
    assert count_operators(model.module).keys() == {"aten.embedding.default", "aten.gelu.default", "aten.linear.default"}
    assert_same(model, module)


@pytest.mark.parametrize(("module", "expected"), [(OtherFactor(), 0), (OtherOuter(), 1)], ids=["another tanh", "another outside"])
def test_what_only_looks_like_gelu(module: TokenModule, expected: int) -> None:
    model = flat_graph(module)
    assert recognise_gelu(model) == (0, expected)
    assert_same(model, module)
