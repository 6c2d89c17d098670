"""Groups as compiled models use them, of `torch.distributed` and over shared memory; ranks are threads."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from flexspec.codegen.cpu import shared_group
from flexspec.codegen.cpu.shared_group import SharedGroup, shared_group_bytes
from flexspec.codegen.parallel_group import ParallelGroup
from parallel_cases import gloo_groups, on_ranks
from shared_regions import ThreadRegion

Groups = Callable[[int], Sequence[ParallelGroup]]


def shared_groups(size: int) -> list[SharedGroup]:
    region = ThreadRegion(shared_group_bytes(size))
    return [SharedGroup(region, rank=rank, size=size, name="threads") for rank in range(size)]


every_kind = pytest.mark.parametrize("groups_of", [gloo_groups, shared_groups])


@every_kind
@pytest.mark.parametrize("size", [2, 3])
def test_collectives_agree_with_what_they_stand_for(groups_of: Groups, size: int) -> None:
    groups = groups_of(size)
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


@every_kind
@pytest.mark.parametrize("size", [2, 3])
def test_a_rows_sum_does_not_depend_on_how_many_rows_share_it(groups_of: Groups, size: int) -> None:
    groups = groups_of(size)
    summands = torch.randn((size, 37, 11))

    def run(rank: int, rows: slice) -> Tensor:
        total = summands[rank, rows].clone()
        groups[rank].reduce(total)
        return total

    together = on_ranks(size, lambda rank: run(rank, slice(None)))
    assert all(torch.equal(one, together[0]) for one in together), "ranks that differ would part ways"
    for row in (0, 17, 36):
        assert torch.equal(on_ranks(size, lambda rank, row=row: run(rank, slice(row, row + 1)))[0][0], together[0][row])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_larger_than_the_shared_memory_goes_piece_by_piece(monkeypatch: pytest.MonkeyPatch, size: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(shared_group, "_PIECE", 64)
    groups, widths = shared_groups(size), [50, 3, 40][:size]
    summands = torch.randn((size, 7, 9)).to(dtype)
    parts = [torch.randn((7, width)).to(dtype) for width in widths]

    def run(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        total, value, out = summands[rank].clone(), summands[rank].clone(), torch.zeros((7, sum(widths)), dtype=dtype)
        for _ in range(3):  # halves of the memory come again
            groups[rank].replicate(value)
            groups[rank].combine(parts[rank], widths, out)
        groups[rank].reduce(total)
        return total, out, value

    expected = summands[0].clone()
    for summand in summands[1:]:
        expected += summand
    for total, combined, value in on_ranks(size, run):
        assert torch.equal(total, expected)
        assert torch.equal(combined, torch.cat(parts, dim=1))
        assert torch.equal(value, summands[0])
