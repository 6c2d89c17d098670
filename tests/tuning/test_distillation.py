"""The distillation loss: a weighted cross entropy, and its gradient, chunk by chunk."""

import pytest
import torch

from flexspec.tuning.distillation import chunk_rows, distillation_loss

HIDDEN, COLUMNS, DEPTHS = 12, 30, 3


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 600])
def test_value_and_gradient(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    hidden, target, lm_head = normal(DEPTHS, rows, HIDDEN), normal(rows, HIDDEN), normal(COLUMNS, HIDDEN)
    weights = torch.rand(DEPTHS, rows, generator=generator, dtype=torch.float64)
    weights[0, 0] = 0.0
    slopes = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)

    exact = hidden.clone().requires_grad_()
    wanted = torch.softmax(target @ lm_head.T, dim=-1)
    expected = (weights * -(wanted * torch.log_softmax(exact @ lm_head.T, dim=-1)).sum(dim=-1)).sum(dim=1)
    (slopes * expected).sum().backward()

    given = hidden.float().requires_grad_()
    losses = distillation_loss(given, weights.float(), target.float(), lm_head.float())
    (slopes.float() * losses).sum().backward()
    assert exact.grad is not None and given.grad is not None
    assert torch.allclose(losses.double(), expected, rtol=1e-5)
    assert (given.grad - exact.grad).abs().max() < 1e-5
    assert not given.grad[0, 0].any()


def test_the_least_is_at_the_llm_s_own_state() -> None:
    generator = torch.Generator().manual_seed(0)
    target, lm_head = torch.randn(20, HIDDEN, generator=generator), torch.randn(COLUMNS, HIDDEN, generator=generator)
    same = target[None].clone().requires_grad_()
    distillation_loss(same, torch.ones(1, 20), target, lm_head).sum().backward()
    assert same.grad is not None and same.grad.abs().max() < 1e-5


def test_no_rows() -> None:
    hidden = torch.zeros(2, 0, HIDDEN, requires_grad=True)
    losses = distillation_loss(hidden, torch.ones(2, 0), torch.zeros(0, HIDDEN), torch.zeros(COLUMNS, HIDDEN))
    losses.sum().backward()
    assert losses.tolist() == [0.0, 0.0]


def test_an_output_matrix_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, target = torch.randn(1, 40, HIDDEN, generator=generator), torch.randn(40, HIDDEN, generator=generator).bfloat16()
    lm_head = torch.randn(COLUMNS, HIDDEN, generator=generator).bfloat16()
    exact = distillation_loss(hidden, torch.ones(1, 40), target.float(), lm_head.float())
    assert torch.allclose(distillation_loss(hidden, torch.ones(1, 40), target, lm_head), exact, rtol=1e-2)


def test_chunks_shrink_with_the_vocabulary() -> None:
    assert [chunk_rows(columns) for columns in (1, 8192, 49_152, 262_144, 10**9)] == [256, 256, 256, 64, 1]
