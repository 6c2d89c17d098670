"""Elements that are computed when they are asked for are those of the whole tensor."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flexspec.ir.onnx.context  # noqa: F401 - fills the table of operators
from flexspec.ir.onnx import lazy
from flexspec.ir.onnx.lazy import Budget, LazyTensor, TooLargeError, elements_at, lazily

_ROWS, _COLUMNS = 9, 11


def _grid() -> Tensor:
    """[9, 11], different everywhere."""
    return torch.arange(_ROWS)[:, None] * 100 + torch.arange(_COLUMNS)


def _steps() -> Tensor:
    """[9, 11]: rows of zeros, then ones, as of a causal mask with a window."""
    distance = torch.arange(_ROWS)[:, None] - torch.arange(_COLUMNS)
    return torch.logical_and(distance >= 0, distance < 4)


def _block() -> tuple[Tensor, Tensor]:
    return torch.arange(2, 6)[:, None].expand(4, 5), (torch.arange(5) + 3).expand(4, 5)


OPERATIONS: dict[str, Callable[[], Tensor]] = {
    "arange": lambda: torch.arange(3, 90, 4),
    "broadcast": lambda: torch.where(_grid() % 3 == 0, _grid().float(), float("-inf")),
    "cast": lambda: _grid().to(torch.float32) / 7,
    "chosen rows": lambda: _grid().index_select(0, torch.tensor([4, 8, 0, 4])),
    "chosen elements": lambda: _grid()[_block()],
    "embedding": lambda: torch.nn.functional.embedding(torch.arange(40) % 5, torch.arange(60.0).reshape(6, 10)),
    "expanded": lambda: _grid()[None, :, None].expand(3, _ROWS, 2, _COLUMNS) + 1,
    "flipped": lambda: _grid().flip(0, 1),
    "full": lambda: torch.full((5, 7), 2.5) + torch.zeros(7) + torch.ones(5, 1),
    "gathered": lambda: torch.gather(_grid(), 1, (_grid() * 7) % _COLUMNS),
    "joined": lambda: torch.cat([_grid(), _grid()[:, :3] + 1, _grid()[:, 4:]], 1),
    "lower": lambda: _grid().tril(1),
    "masked": lambda: _grid().masked_fill(_grid() % 2 == 0, -1),
    "padded": lambda: torch.nn.functional.pad(_grid(), (2, 1, 0, 3), value=-5),
    "permuted": lambda: (_grid().t().reshape(_COLUMNS, 3, 3).permute(2, 0, 1) + 1).reshape(-1),
    "product": lambda: _grid().float()[:, :3] @ torch.arange(30.0).reshape(3, 10),
    "repeated": lambda: _grid().repeat(2, 3),
    "repeated elements": lambda: _grid().repeat_interleave(3, dim=1),
    "sliced": lambda: _grid()[1:-1:2, 3:] + _grid()[-4:, -8:],
    "stacked": lambda: torch.stack([_grid(), _grid() + 1], 1).select(1, 1),
    "summed": lambda: _steps().float().sum(1, keepdim=True) + _steps().any(1)[:, None] + _steps().float().amax(0),
    "unbound": lambda: torch.stack([_grid(), _grid() * 2], -1).unbind(-1)[1],
    "upper": lambda: _grid().triu(-2),
    "written": lambda: _grid().clone().index_put(_block(), -torch.arange(20).reshape(4, 5)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_elements_are_those_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = OPERATIONS[name]()
    monkeypatch.setattr(lazy, "_HELD", 1)
    with lazily(Budget(1 << 30)):
        found = OPERATIONS[name]()
    assert isinstance(found, LazyTensor) and (found.shape, found.dtype) == (expected.shape, expected.dtype)
    index = [one.flatten() for one in torch.meshgrid(*(torch.arange(size) for size in expected.shape), indexing="ij")]
    assert torch.equal(elements_at(found, *index), expected.flatten())


def test_questions_about_all_are_answered_from_a_sample() -> None:
    length = 1 << 20
    with lazily(Budget(1 << 30)):
        keys = torch.arange(length)
        later = keys > keys[:, None]
        mask = torch.where(later, float("-inf"), 0.0)
        assert not later.all() and later.any() and torch.equal(mask, mask) and torch.equal(later, mask < 0)
        assert not torch.equal(later, keys >= keys[:, None])
        assert torch.allclose(mask, mask + 1e-9)


def test_what_needs_all_elements_is_refused() -> None:
    with lazily(Budget(1 << 30)):
        table = torch.arange(1 << 12)[:, None] * torch.arange(1 << 12)
        with pytest.raises(TooLargeError, match="too many"):
            table.cumsum(0)
        column = torch.arange(1 << 18)[:, None]
        with pytest.raises(TooLargeError, match="no runs"):
            elements_at((column * torch.arange(1 << 18)).sum(1), torch.arange(5))
