import pytest
import torch
from torch import Tensor, nn

from flexspec.ir.cost import count_operators
from flexspec.ir.ops import RMS_NORM
from flexspec.passes.manager import run_passes
from flexspec.passes.norm import recognise_norm
from graph_cases import TokenModule, assert_same, flat_graph


class Norm(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.25))


class OtherOrder(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return torch.rsqrt(0.25 + (x * x).mean(2, keepdim=True)) * x * self.weight


class OfHeads(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        x = x.view(*position_ids.shape, 2, 4)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.25) * self.weight[:4].clone()
        return x.reshape(*position_ids.shape, 8)


@pytest.mark.parametrize("module", [Norm(), OtherOrder()], ids=lambda module: type(module).__name__)
def test_forms_of_the_norm(module: TokenModule) -> None:
    model = flat_graph(module)
    assert recognise_norm(model) == (1, 1)
    assert count_operators(model.module) == {"aten.embedding.default": 1, "flexspec.rms_norm.default": 1, "aten.linear.default": 1}
    (norm,) = model.nodes(RMS_NORM)
    assert norm.args[2] == 0.25
    assert_same(model, module)


class Unweighted(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.25)


@pytest.mark.parametrize("module", [OfHeads(), Unweighted()], ids=lambda module: type(module).__name__)
def test_a_weight_may_be_a_part_of_one_or_missing(module: TokenModule) -> None:
    model = flat_graph(module)
    assert recognise_norm(model) == (1, 1)
    (norm,) = model.nodes(RMS_NORM)
    weight = module.weight[:4] if isinstance(module, OfHeads) else torch.ones(8)
    assert torch.equal(model.parameter(norm.args[1]), weight)
    assert_same(model, module)


class OtherInput(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.weight * (self.extra(x) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.25))


class Cubes(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 0.25))


@pytest.mark.parametrize("module", [OtherInput(), Cubes()], ids=lambda module: type(module).__name__)
def test_near_misses_are_left_and_reported(module: TokenModule) -> None:
    model = flat_graph(module)
    run_passes(model, (recognise_norm,))
    assert (model.notes[-1].matches, model.notes[-1].expected) == (0, 1)
    assert not model.nodes(RMS_NORM)
    assert_same(model, module)


class Library(TokenModule):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(8, eps=0.25)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.norm(x)


def test_pytorchs_own_norm() -> None:
    module = Library()
    model = flat_graph(module)
    assert recognise_norm(model) == (1, 1)
    assert len(model.nodes(RMS_NORM)) == 1
    assert_same(model, module)


class Centred(TokenModule):
    """LayerNorm written out, as in Cohere's models."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return self.weight * ((x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 0.25))


class CentredHeads(TokenModule):
    """Each head has weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Parameter(torch.linspace(0.5, 2, 8).view(2, 4))

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        x = x.view(*position_ids.shape, 2, 4)
        mean = x.mean(-1, keepdim=True)
        x = self.heads * ((x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 0.25))
        return x.reshape(*position_ids.shape, 8)


class OtherMean(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        mean = self.extra(x).mean(-1, keepdim=True)
        return self.weight * ((x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 0.25))


@pytest.mark.parametrize("module", [Centred(), CentredHeads()], ids=lambda module: type(module).__name__)
def test_layer_norm_written_out(module: TokenModule) -> None:
    model = flat_graph(module)
    assert recognise_norm(model) == (1, 1)
    assert model.nodes(torch.ops.aten.layer_norm.default) and not model.nodes(torch.ops.aten.rsqrt.default)
    assert_same(model, module)


def test_a_norm_around_another_mean_is_an_rms_norm() -> None:
    module = OtherMean()
    model = flat_graph(module)
    assert recognise_norm(model) == (1, 1) and len(model.nodes(RMS_NORM)) == 1
    assert_same(model, module)
