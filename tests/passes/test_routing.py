"""Softmax routing, however it is written, becomes one operator; other routing stays."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flexspec.ir.ops import TOP_EXPERTS
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.manager import run_passes
from flexspec.passes.routing import recognise_routing
from graph_cases import graph_logits, graph_of, prompt, reference_logits

Routing = Callable[[Tensor], tuple[Tensor, Tensor]]


def plain(logits: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.topk(logits.softmax(-1), 3, dim=-1))


def normalised(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = torch.topk(logits.float().softmax(dim=-1), 3)
    values /= values.sum(-1, keepdim=True)
    return values.to(logits.dtype), ids


def of_the_best(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = torch.topk(logits, 3, dim=-1)
    return values.softmax(dim=1, dtype=values.dtype), ids


def of_sigmoids(logits: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.topk(logits.sigmoid(), 3, dim=-1))


def smallest(logits: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(torch.topk(logits.softmax(-1), 3, dim=-1, largest=False))


def divided_by_something_else(logits: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = torch.topk(logits.softmax(-1), 3)
    return values / (values.sum(-1, keepdim=True) + values.amax(-1, keepdim=True)), ids


class Router(nn.Module):
    def __init__(self, routing: Routing) -> None:
        super().__init__()
        self.routing = routing
        self.table, self.gate, self.marks = nn.Embedding(300, 16), nn.Linear(16, 7), nn.Embedding(7, 1)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        logits = self.gate(self.table(input_ids).view(-1, 16))
        weights, ids = self.routing(logits)
        return (weights + self.marks(ids)[..., 0]).view(*input_ids.shape, 3)


@pytest.mark.parametrize(
    ("routing", "is_normalised"),
    [(plain, False), (normalised, True), (of_the_best, True), (of_sigmoids, None), (smallest, None)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_recognised(routing: Routing, is_normalised: bool | None) -> None:
    module = Router(routing).eval()
    model = graph_of(module)
    run_passes(model, (canonicalize, flatten_tokens))
    assert recognise_routing(model) == (is_normalised is not None)
    assert [node.args[1:] for node in model.nodes(TOP_EXPERTS)] == ([(3, is_normalised)] if is_normalised is not None else [])
    if is_normalised is not None:
        assert not model.nodes(torch.ops.aten.topk.default, torch.ops.aten.softmax.int)
    torch.testing.assert_close(graph_logits(model, prompt(9)), reference_logits(module, prompt(9)))


def test_another_division_is_kept_behind_the_operator() -> None:
    module = Router(divided_by_something_else).eval()
    model = graph_of(module)
    run_passes(model, (canonicalize, flatten_tokens, recognise_routing))
    assert [node.args[1:] for node in model.nodes(TOP_EXPERTS)] == [(3, False)]
    torch.testing.assert_close(graph_logits(model, prompt(9)), reference_logits(module, prompt(9)))
