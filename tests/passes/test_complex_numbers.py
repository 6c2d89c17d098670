"""Rotation by complex numbers is one of pairs of real ones."""

import torch
from torch import Tensor

from flexspec.passes.complex_numbers import take_complex_apart
from graph_cases import TokenModule, assert_same, flat_graph, graph_of


class Rotated(TokenModule):
    """By angles of positions, and by a table of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(11), torch.tensor([1.0, 0.3, 0.1, 0.03]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        angles = position_ids[..., None] * torch.tensor([1.0, 0.5, 0.2, 0.1])
        turned = pairs * torch.polar(torch.ones_like(angles), angles) * self.turns[position_ids] * 0.5
        return torch.view_as_real(turned).flatten(2) + turned.real.repeat(1, 1, 2) * turned.imag.repeat(1, 1, 2)


def test_real_and_imaginary_parts_are_values_of_their_own() -> None:
    module = Rotated()
    model = graph_of(module)
    assert take_complex_apart(model) >= 3
    assert not any(getattr(node.meta.get("val"), "dtype", None) == torch.complex64 for node in model.graph.nodes)
    assert_same(flat_graph(module), module)
