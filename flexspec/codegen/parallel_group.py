"""What a compiled model needs of its tensor-parallel group: sums and columns of all ranks."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from flexspec.ir.ops.parallel import ordered_sum


class ParallelGroup(Protocol):
    """The ranks that share the work of a pipeline stage, as one of them sees them.

    All ranks call the same methods in the same order, on tensors of the same dtype and number of rows.

    Attributes:
        rank: this one's place.
        size: how many there are.
        name: what functional collectives know the group by.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def name(self) -> str: ...

    def reduce(self, summand: Tensor) -> None:
        """Put the sum over all ranks in the place of this rank's summand; an element's sum never depends on the others."""
        ...

    def combine(self, columns: Tensor, widths: Sequence[int], out: Tensor) -> None:
        """Put all ranks' columns side by side.

        Args:
            columns: this rank's, [rows, widths[rank]].
            widths: the columns of each rank.
            out: [rows, sum(widths)].
        """
        ...

    def replicate(self, value: Tensor) -> None:
        """Put the first rank's value in the place of this rank's."""
        ...


class TorchGroup:
    """A process group of `torch.distributed` as a `ParallelGroup`; gloo on CPUs, NCCL on GPUs."""

    def __init__(self, process_group: Any) -> None:
        self._group = process_group
        self.rank: int = process_group.rank()
        self.size: int = process_group.size()
        self.name: str = process_group.group_name
        # Two ranks of gloo are two to three times faster at messages than at its collectives.
        self._exchanges = self.size == 2 and process_group.name() == "gloo"

    def reduce(self, summand: Tensor) -> None:
        """See `ParallelGroup.reduce`."""
        if self.size == 2 and not self._exchanges:  # the order of two summands does not matter
            self._group.allreduce([summand]).wait()
        else:
            summand.copy_(ordered_sum(self._gathered(summand)))

    def combine(self, columns: Tensor, widths: Sequence[int], out: Tensor) -> None:
        """See `ParallelGroup.combine`."""
        start, width = 0, columns.shape[1]
        mine = columns if width == max(widths) else F.pad(columns, (0, max(widths) - width))
        for part, width in zip(self._gathered(mine), widths, strict=True):
            out[:, start : start + width] = part[:, :width]
            start += width

    def replicate(self, value: Tensor) -> None:
        """See `ParallelGroup.replicate`."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([value], options).wait()

    def _gathered(self, mine: Tensor) -> tuple[Tensor, ...]:
        """Every rank's tensor of this shape."""
        rows = mine.contiguous()
        if self._exchanges:
            return self._exchanged(rows)
        gathered = torch.empty((self.size, *rows.shape), dtype=rows.dtype, device=rows.device)
        self._group.allgather([list(gathered)], [rows]).wait()
        return gathered.unbind()

    def _exchanged(self, mine: Tensor) -> tuple[Tensor, ...]:
        other = 1 - self.rank
        theirs = torch.empty_like(mine)
        under_way = [self._group.send([mine], other, 0), self._group.recv([theirs], other, 0)]
        for message in under_way:
            message.wait()
        return (mine, theirs) if self.rank == 0 else (theirs, mine)
