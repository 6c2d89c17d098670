"""A tensor-parallel group of ranks that share memory: they write what they have to give there, and read what the others wrote."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from flexspec.ir.ops.parallel import ordered_sum

_LINE = 64
"""Bytes between words of different ranks: what one writes is not on a line of cache that another one reads all the time."""
_PIECE = 512 << 10
"""Bytes of a rank that are on their way at once; more goes piece by piece."""
_TURNS = 2


class SharedRegion(Protocol):
    """Memory that all ranks of a group see, zero at first.

    Attributes:
        memory: all of it, uint8.
    """

    @property
    def memory(self) -> Tensor: ...

    def publish(self, byte: int, value: int) -> None:
        """Write the int64 that begins at a byte; whoever sees it sees what was written before it, too."""
        ...

    def wait(self, byte: int, least: int, *, owner: int) -> None:
        """Wait until the int64 that begins at a byte has reached a value; its `owner`, a rank of the group, writes it."""
        ...


def shared_group_bytes(size: int) -> int:
    """What a group of so many ranks needs."""
    return size * (_LINE + _TURNS * _PIECE)


class SharedGroup:
    """See `ParallelGroup`; on CPUs of one machine.

    Every exchange is the next one's turn in one of two halves of the memory. Who has come to an exchange has read all of the one before
    it, so the half that a rank writes next is no longer read.

    Args:
        region: of `shared_group_bytes(size)`.
        rank: this one's place.
        size: how many there are.
        name: what functional collectives know the group by.
    """

    def __init__(self, region: SharedRegion, *, rank: int, size: int, name: str) -> None:
        self.rank = rank
        self.size = size
        self.name = name
        self._region = region
        self._exchanges = 0
        slots = region.memory[size * _LINE :].view(_TURNS, size, _PIECE)
        self._slots = [[slots[turn, place] for place in range(size)] for turn in range(_TURNS)]

    def reduce(self, summand: Tensor) -> None:
        """See `ParallelGroup.reduce`."""
        for piece in _pieces(summand):
            summands = self._exchanged(piece)
            if self.size == 2:
                torch.add(*summands, out=piece)
            else:
                piece.copy_(ordered_sum(summands))

    def combine(self, columns: Tensor, widths: Sequence[int], out: Tensor) -> None:
        """See `ParallelGroup.combine`."""
        most = _PIECE // columns.element_size()
        starts = [sum(widths[:place]) for place in range(self.size)]
        for first in range(0, max(widths), most):
            shares = [min(max(width - first, 0), most) for width in widths]
            mine = columns[:, first : first + shares[self.rank]]
            count = most // max(shares)
            for row in range(0, len(columns), count):
                rows = mine[row : row + count]
                parts = self._exchanged(rows.reshape(-1), [len(rows) * share for share in shares])
                for start, share, part in zip(starts, shares, parts, strict=True):
                    out[row : row + count, start + first : start + first + share] = part.view(len(rows), share)

    def replicate(self, value: Tensor) -> None:
        """See `ParallelGroup.replicate`."""
        for piece in _pieces(value):
            first = self._exchanged(piece)[0]
            if self.rank:
                piece.copy_(first)

    def _exchanged(self, mine: Tensor, lengths: Sequence[int] | None = None) -> list[Tensor]:
        """Every rank's values, of these lengths, or as many as this one's; they stay until the exchange after the next one."""
        self._exchanges += 1
        slots = [slot.view(mine.dtype) for slot in self._slots[self._exchanges % _TURNS]]
        slots[self.rank][: len(mine)] = mine
        self._region.publish(self.rank * _LINE, self._exchanges)
        for place in range(self.size):
            if place != self.rank:
                self._region.wait(place * _LINE, self._exchanges, owner=place)
        return [slot[:length] for slot, length in zip(slots, lengths or [len(mine)] * self.size, strict=True)]


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Views of a tensor, which has no gaps, that fit into a rank's half."""
    values, most = tensor.view(-1), _PIECE // tensor.element_size()
    for start in range(0, len(values), most):
        yield values[start : start + most]
