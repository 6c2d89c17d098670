import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flexspec.passes.search.hollow import WithoutProducts

WIDE = 1 << 20
"""A square matrix of this width would take 4 TB."""


@pytest.fixture
def matrix() -> nn.Parameter:
    return nn.Parameter(torch.zeros(()).expand(WIDE, WIDE), requires_grad=False)


def test_products_with_parameters_without_memory_take_none(matrix: nn.Parameter) -> None:
    x = torch.ones(()).expand(2, 3, WIDE)
    with WithoutProducts():
        results = [F.linear(x, matrix), x @ matrix, torch.matmul(x, matrix), torch.bmm(x, matrix.expand(2, WIDE, WIDE))]
        bias = torch.zeros(()).expand(WIDE)
        results += [torch.addmm(bias, x[0], matrix)[None], F.linear(x, matrix, bias)]
    for result in results:
        assert result.shape[-2:] == (3, WIDE) and not result[0, 0, :5].any()


def test_all_else_is_computed() -> None:
    x, weight = torch.rand(4, 3), torch.rand(5, 3)
    with WithoutProducts():
        assert torch.equal(F.linear(x, weight), x @ weight.T)
        assert torch.equal(torch.matmul(x, torch.ones(3)), x @ torch.ones(3))
