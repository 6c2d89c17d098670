"""Process groups of `torch.distributed` as compiled models use them; ranks are threads."""

import pytest
import torch
from torch import Tensor

from parallel_cases import gloo_groups, on_ranks


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_agree_with_what_they_stand_for(size: int) -> None:
    groups = gloo_groups(size)
    summands, widths = torch.randn((size, 5, 8)), [3, 1, 2][:size]
    parts = [torch.randn((5, width)) for width in widths]

    def run(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        total, value, out = summands[rank].clone(), summands[rank].clone(), torch.empty((5, sum(widths)))
        groups[rank].reduce(total)
        groups[rank].combine(parts[rank], widths, out)
        groups[rank].replicate(value)
        return total, out, value

    assert [group.rank for group in groups] == list(range(size)) and {group.size for group in groups} == {size}
    for total, combined, value in on_ranks(size, run):
        torch.testing.assert_close(total, summands.sum(0))
        assert torch.equal(combined, torch.cat(parts, dim=1))
        assert torch.equal(value, summands[0])


@pytest.mark.parametrize("size", [2, 3])
def test_a_rows_sum_does_not_depend_on_how_many_rows_share_it(size: int) -> None:
    groups = gloo_groups(size)
    summands = torch.randn((size, 37, 11))

    def run(rank: int, rows: slice) -> Tensor:
        total = summands[rank, rows].clone()
        groups[rank].reduce(total)
        return total

    together = on_ranks(size, lambda rank: run(rank, slice(None)))
    assert all(torch.equal(one, together[0]) for one in together), "ranks that differ would part ways"
    for row in (0, 17, 36):
        assert torch.equal(on_ranks(size, lambda rank, row=row: run(rank, slice(row, row + 1)))[0][0], together[0][row])
