"""The references of the parallel operators, over gloo groups whose ranks are threads, and their fakes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from flexspec.ir.ops import COMBINE, REDUCE, REPARTITION, REPLICATE
from flexspec.ir.partition import shares
from parallel_cases import gloo_groups, on_ranks

COLUMNS = 7


def test_a_rank_keeps_its_columns() -> None:
    x = torch.arange(2 * 5 * 3.0).reshape(2, 5, 3)
    assert torch.equal(REPARTITION(x, 1, 3), x[:, 1:4])
    assert torch.equal(REPARTITION(x[..., 0], 4, 1), x[:, 4:, 0])


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_put_together_what_they_have(size: int) -> None:
    groups = gloo_groups(size)
    whole = torch.arange(4 * COLUMNS * 2.0).reshape(4, COLUMNS, 2)
    widths = shares(COLUMNS, size)
    summands = torch.randn((size, 3, 5))

    def run(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        group = groups[rank].name
        mine = REPARTITION(whole, sum(widths[:rank]), widths[rank])
        total = REDUCE(summands[rank].T, size, group)
        return COMBINE(mine, widths, group), COMBINE(mine[..., 1], widths, group), total, REPLICATE(summands[rank], group)

    total = torch.stack([*summands]).sum(0) if size == 2 else (summands[0] + summands[1]) + summands[2]
    for heads, columns, reduced, first in on_ranks(size, run):
        assert torch.equal(heads, whole)
        assert torch.equal(columns, whole[..., 1])
        assert torch.equal(reduced, total.T)  # bit for bit: added in the order of the ranks
        assert torch.equal(first, summands[0])


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x: REPARTITION(x, 1, 2), (6, 2, 4)),
        (lambda x: COMBINE(x, [3, 2, 2], "nobody"), (6, 7, 4)),
        (lambda x: REDUCE(x, 2, "nobody"), (6, 3, 4)),
        (lambda x: REPLICATE(x, "nobody"), (6, 3, 4)),
    ],
)
def test_shapes_are_known_without_a_group(call: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    with FakeTensorMode():
        assert call(torch.empty((6, 3, 4))).shape == shape
