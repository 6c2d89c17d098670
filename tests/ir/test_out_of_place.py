"""In-place operators of traced graphs: rewritten where that keeps the meaning, left to be refused elsewhere."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flexspec.ir.out_of_place import make_out_of_place


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def divided(x: Tensor) -> Tensor:
    values, _ = torch.topk(x, 2)
    values /= values.sum(-1, keepdim=True)
    return values


def several(x: Tensor) -> Tensor:
    y = x * 2
    z = y + 1
    y += z
    y.mul_(3)
    return y.clamp_(max=5) + z


def seen_after(x: Tensor) -> Tensor:
    y = x * 2
    y += 1
    return y[:1]


def seen_before(x: Tensor) -> Tensor:
    y = x * 2
    view = y[:1]
    y += 1
    return view


def of_the_input(x: Tensor) -> Tensor:
    x += 1
    return x


def narrower(x: Tensor) -> Tensor:
    y = x.half()
    y += x
    return y


def through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y[:1] += 1
    return y


def dropped_out(x: Tensor) -> Tensor:
    y = torch.dropout(x, 0.5, False)
    y += 1
    return y


def put_together(x: Tensor) -> Tensor:
    y = x.new_empty(4, 7)
    y[:, 5:].copy_(x[:, :2])
    y[:, :5].copy_(x * 2)
    return y + 1


def put_together_in_part(x: Tensor) -> Tensor:
    y = x.new_empty(4, 7)
    y[:, :5].copy_(x)
    return y[:, :5]


def put_together_twice(x: Tensor) -> Tensor:
    y = x.new_empty(4, 5)
    y[:, :5].copy_(x)
    z = y + 1
    y[:, :5].copy_(x * 2)
    return y + z


def broadcast_into(x: Tensor) -> Tensor:
    y = x.new_empty(4, 5)
    y[:, :5].copy_(x[:, :1])
    return y


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (divided, 0),
        (several, 0),
        (seen_after, 0),
        (seen_before, 1),
        (of_the_input, 1),
        (narrower, 1),
        (through_a_view, 1),
        (dropped_out, 1),
        (put_together, 0),
        (put_together_in_part, 1),
        (put_together_twice, 1),
        (broadcast_into, 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_rewritten_keeps_its_meaning(function: Callable[[Tensor], Tensor], left: int) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(Of(function), (x,), strict=False)
    make_out_of_place(exported.graph)
    exported.graph.lint()
    mutable = [node for node in exported.graph.nodes if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable]
    assert (len(mutable) > 0) == (left > 0)
    if not left:
        module = torch.fx.GraphModule(exported.graph_module, exported.graph)
        torch.testing.assert_close(module(x.clone())[0], function(x.clone()))
