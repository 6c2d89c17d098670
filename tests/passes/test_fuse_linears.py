import torch
from torch import Tensor, nn

from flexspec.ir.graph import fake
from flexspec.passes.fuse_linears import fuse_linears
from graph_cases import TokenModule, assert_same, flat_graph

LINEAR = torch.ops.aten.linear.default


class Three(TokenModule):
    """Two linears with a bias and one without, of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(8, 3, bias=False), nn.Linear(8, 5)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.extra(x) + torch.cat([self.narrow(x), self.wide(x)], dim=-1)


class Heads(Three):
    """The linears work on heads, [tokens, 2, 8] in the flat graph."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = torch.cat([x, -x], dim=-1).view(*position_ids.shape, 2, 8)
        both = self.extra(heads) * torch.cat([self.narrow(heads), self.wide(heads)], dim=-1)
        return both.reshape(*position_ids.shape, 16)[..., 4:12]


def test_linears_of_one_input_are_stacked() -> None:
    module = Three()
    model = flat_graph(module)
    assert fuse_linears(model) == (3, 3)
    first, head = model.nodes(LINEAR)
    assert list(fake(first.args[1]).shape) == [16, 8] and list(fake(first.args[2]).shape) == [16]
    assert model.parameter(first.args[2])[8:11].abs().max() == 0
    assert list(fake(head.args[1]).shape) == [11, 8]
    assert_same(model, module)


def test_the_last_dim_is_sliced() -> None:
    module = Heads()
    model = flat_graph(module)
    assert fuse_linears(model) == (3, 3)
    assert_same(model, module)


def test_linears_of_different_inputs_stay() -> None:
    class Chain(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return self.extra(self.extra(x))

    module = Chain()
    model = flat_graph(module)
    assert fuse_linears(model) == (0, 0)
    assert_same(model, module)


def test_without_biases_there_is_none() -> None:
    class Two(Three):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return nn.functional.linear(x, self.extra.weight) + torch.cat([self.narrow(x), nn.functional.linear(x, self.wide.weight)], -1)

    model = flat_graph(Two())
    assert fuse_linears(model) == (3, 3)
    assert model.nodes(LINEAR)[0].args[2] is None


def test_origins_tell_what_was_stacked() -> None:
    module, other = Three(), Three()
    other.extra.weight = module.extra.weight
    other.narrow.weight = module.narrow.weight
    other.wide.weight = module.wide.weight
    weights, biases = [], []
    for one in (module, module, other):
        model = flat_graph(one)
        fuse_linears(model)
        fused = model.nodes(LINEAR)[0]
        weights.append(model.origin(fused.args[1]))
        biases.append(model.origin(fused.args[2]))
    assert weights[0] == weights[1] == weights[2]
    assert biases[0] == biases[1] != biases[2]  # the same weights, but biases of its own
