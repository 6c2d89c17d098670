"""Messages between ranks of one machine, through memory that they share: a ring of bytes for each sender and receiver."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.runtime.distributed.shared_memory import SharedMemory

_LINE = 64
_WORDS = 2 * _LINE
"""Two counts of bytes, which only grow: what the sender wrote, and what the receiver has read."""
_HEADER = 16
"""A message begins with its tag and its length, two int64."""
_ALL_BYTES = 16 << 20
_MOST_BYTES, _FEWEST_BYTES = 4 << 20, 64 << 10
_ELSEWHERE = -1
MOST_RANKS = 32
"""Beyond, rings for all pairs would take too much memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ring:
    """A sender's messages to a receiver."""

    start: int
    content: npt.NDArray[np.uint8]

    @property
    def written(self) -> int:
        """Where the sender's count begins."""
        return self.start

    @property
    def read(self) -> int:
        """Where the receiver's count begins."""
        return self.start + _LINE


class Mailboxes:
    """What this rank sends others of its machine, and they send it.

    A sender does not wait for a receiver: what does not fit into a ring goes another way, and the ring says so in its place. Only where
    not even that fits, it waits.

    Args:
        memory: of `mailbox_bytes(size)`.
        place: this rank's among those that share it.
        size: how many these are.
        room_s: seconds after which a receiver that makes no room is given up.
    """

    def __init__(self, memory: SharedMemory, *, place: int, size: int, room_s: float) -> None:
        self._memory = memory
        self._room_s = room_s
        capacity = _capacity(size)
        content = memory.memory.numpy()
        self._words = content.view(np.int64)
        each = _WORDS + capacity

        def ring(source: int, target: int) -> _Ring:
            start = (source * size + target) * each
            return _Ring(start=start, content=content[start + _WORDS : start + each])

        self._outgoing = [ring(place, target) for target in range(size)]
        self._incoming = [ring(source, place) for source in range(size)]
        self._written, self._read = [0] * size, [0] * size
        self._kept: list[dict[int, deque[Tensor | None]]] = [{} for _ in range(size)]
        self._capacity = capacity

    def put(self, target: int, tensor: Tensor, tag: int) -> bool:
        """Send a tensor's bytes; False if they do not fit, and the receiver has to take them another way.

        Raises:
            RankFailure: if not even word of that fits, and the receiver is gone, or takes too long.
        """
        ring, written = self._outgoing[target], self._written[target]
        free = self._capacity - (written - int(self._words[ring.read // 8]))
        content = tensor.detach().view(-1).view(torch.uint8).numpy()
        fits = _HEADER + _padded(len(content)) <= free
        if free < _HEADER:
            self._memory.wait(ring.read, written + _HEADER - self._capacity, owner=target, limit_s=self._room_s)
        header = np.array([tag, len(content) if fits else _ELSEWHERE], dtype=np.int64)
        self._write(ring, written, header.view(np.uint8))
        written += _HEADER
        if fits:
            self._write(ring, written, content)
            written += _padded(len(content))
        self._written[target] = written
        self._memory.publish(ring.written, written)
        return fits

    def take(self, source: int, tensor: Tensor, tag: int, *, limit_s: float | None) -> bool:
        """Receive the next tensor of a tag; False if it comes another way.

        Raises:
            RankFailure: if the sender is gone, or takes too long.
        """
        kept = self._kept[source].get(tag)
        if kept:
            message = kept.popleft()
            if message is not None:
                tensor.view(-1).view(torch.uint8).copy_(message)
            return message is not None
        while True:
            found, length = self._next_header(source, limit_s)
            if found == tag:
                if length == _ELSEWHERE:
                    return False
                content = tensor.view(-1).view(torch.uint8)
                assert length == len(content)
                self._take_content(source, content)
                return True
            other = None
            if length != _ELSEWHERE:
                other = torch.empty(length, dtype=torch.uint8)
                self._take_content(source, other)
            self._kept[source].setdefault(found, deque()).append(other)

    def _next_header(self, source: int, limit_s: float | None) -> tuple[int, int]:
        ring, read = self._incoming[source], self._read[source]
        self._memory.wait(ring.written, read + _HEADER, owner=source, limit_s=limit_s)
        header = np.empty(_HEADER, dtype=np.uint8)
        self._copy(ring, read, header)
        tag, length = (int(value) for value in header.view(np.int64))
        self._advance(source, _HEADER)
        return tag, length

    def _take_content(self, source: int, content: Tensor) -> None:
        self._copy(self._incoming[source], self._read[source], content.numpy())
        self._advance(source, _padded(len(content)))

    def _advance(self, source: int, count: int) -> None:
        self._read[source] += count
        self._memory.publish(self._incoming[source].read, self._read[source])

    def _write(self, ring: _Ring, at: int, content: npt.NDArray[np.uint8]) -> None:
        start = at % self._capacity
        first = min(len(content), self._capacity - start)
        ring.content[start : start + first] = content[:first]
        ring.content[: len(content) - first] = content[first:]

    def _copy(self, ring: _Ring, at: int, content: npt.NDArray[np.uint8]) -> None:
        start = at % self._capacity
        first = min(len(content), self._capacity - start)
        content[:first] = ring.content[start : start + first]
        content[first:] = ring.content[: len(content) - first]


def mailbox_bytes(size: int) -> int:
    """What so many ranks need."""
    return size * size * (_WORDS + _capacity(size))


def _capacity(size: int) -> int:
    share = _ALL_BYTES // (size * size) // _LINE * _LINE
    return min(max(share, _FEWEST_BYTES), _MOST_BYTES)


def _padded(length: int) -> int:
    return -(-length // _HEADER) * _HEADER
