"""Positions that a module counts itself."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.positions_from_length import positions_from_length

ROWS, DIM, HEADS = 40, 8, 2


class Counting(nn.Module):
    """Adds something that depends on the length to heads of embeddings."""

    def __init__(self, added: Callable[["Counting", Tensor, int], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.added = added
        self.embed, self.places, self.head = nn.Embedding(11, DIM), nn.Embedding(ROWS, DIM), nn.Linear(DIM, 11)
        self.register_buffer("table", torch.randn(1, ROWS, DIM))
        self.register_buffer("by_head", torch.randn(HEADS, ROWS, DIM // HEADS))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.added(self, self.embed(input_ids), input_ids.shape[1]))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


CASES: dict[str, Callable[[Counting, Tensor, int], Tensor]] = {
    "rows picked": lambda own, x, n: x + own.places(torch.arange(n)),
    "rows picked, a batch": lambda own, x, n: x + own.places(torch.arange(2, n + 2)[None].expand(x.shape[0], n)),
    "a slice": lambda own, x, n: x + own.table[:, :n],
    "a number each": lambda own, x, n: x * torch.arange(n)[:, None].float().add(1).log(),
    "a row each head": lambda own, x, n: (heads(x) * own.by_head[:, :n]).transpose(1, 2).flatten(2),
    "angles of heads": lambda own, x, n: (heads(x) * torch.outer(torch.arange(n).float(), torch.ones(4)).cos()).transpose(1, 2).flatten(2),
    "tokens first": lambda own, x, n: (x.transpose(0, 1) + own.table[0, :n, None]).transpose(0, 1),
    "counted by a sum": lambda own, x, n: x + own.places(torch.ones(n, dtype=torch.int64).cumsum(0) - 1),
}


def rewritten(name: str) -> tuple[Counting, ModelGraph]:
    module = Counting(CASES[name]).eval()
    model = capture(module, name="counting")
    canonicalize(model)
    assert positions_from_length(model) == 1
    return module, model


@pytest.mark.parametrize("name", CASES)
def test_a_token_reads_the_row_of_its_position(name: str) -> None:
    module, model = rewritten(name)
    ids = torch.arange(14).view(2, 7) % 11
    order = torch.tensor([3, 0, 6, 5, 1, 2, 4])
    with torch.no_grad():
        expected = module(ids)
        positions = torch.arange(7).expand(2, 7)
        torch.testing.assert_close(model.module(ids, positions), expected, atol=1e-5, rtol=1e-5)
        # Tokens in another order are themselves.
        torch.testing.assert_close(model.module(ids[:, order], positions[:, order]), expected[:, order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_graph_runs_on_flat_tokens(name: str) -> None:
    module = Counting(CASES[name]).eval()
    model = capture(module, name="counting")
    with torch.no_grad():
        run_passes(model, FLAT)
        ids = torch.tensor([3, 1, 4, 1, 5])
        torch.testing.assert_close(model.module(ids, torch.arange(5)), module(ids[None])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["a slice", "a row each head"])
def test_texts_are_as_long_as_the_table(name: str) -> None:
    assert rewritten(name)[1].facts.max_positions == ROWS


def test_what_is_the_same_for_all_needs_no_table() -> None:
    module = Counting(lambda own, x, n: torch.zeros_like(x) + x * torch.full((n, 1), 1.5))
    model = capture(module.eval(), name="counting")
    assert positions_from_length(model) == 2 and model.facts.max_positions is None
    ids = torch.arange(14).view(2, 7) % 11
    with torch.no_grad():
        torch.testing.assert_close(model.module(ids, torch.arange(7).expand(2, 7)), module(ids))


@pytest.mark.parametrize("rows", [lambda n: torch.arange(n).flip(0), lambda n: torch.arange(n) * 2])
def test_rows_counted_in_another_way_are_left(rows: Callable[[int], Tensor]) -> None:
    """Also where the table has no row for what they would be in the longest text."""
    model = capture(Counting(lambda own, x, n: x + own.places(rows(n))).eval(), name="counting")
    assert positions_from_length(model) == 0


def test_what_another_length_changes_is_left() -> None:
    module = Counting(lambda own, x, n: x * torch.arange(n)[:, None].sub(n).float())
    model = capture(module.eval(), name="counting")
    canonicalize(model)
    assert positions_from_length(model) == 0
