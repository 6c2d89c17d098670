"""Halves of heads, cut in every way."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexspec.passes.halves import whole_of_halves
from graph_cases import TokenModule, flat_graph

_aten = torch.ops.aten
CUTS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, ...]], bool]] = {
    "slices": (lambda x: (x[..., :4], x[..., 4:]), True),
    "chunk": (lambda x: x.chunk(2, dim=-1), True),
    "split": (lambda x: x.split(4, dim=-1), True),
    "sizes": (lambda x: x.split([4, 4], dim=-1), True),
    "swapped": (lambda x: x.chunk(2, dim=-1)[::-1], False),
    "unequal": (lambda x: x.split([2, 6], dim=-1), False),
    "parts of slices": (lambda x: (x[..., :4], x[..., 2:6]), False),
}


@pytest.mark.parametrize("name", CUTS)
def test_halves_are_known_however_they_are_cut(name: str) -> None:
    cut, are_halves = CUTS[name]

    class Cut(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            first, second = cut(x)
            return torch.cat((first, -second), dim=-1)

    model = flat_graph(Cut())
    (joined,) = model.nodes(_aten.cat.default)
    first, negated = joined.args[0]
    whole = whole_of_halves(first, negated.args[0])
    assert whole is (model.nodes(_aten.embedding.default)[0] if are_halves else None)
