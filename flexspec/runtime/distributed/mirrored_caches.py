"""The driver's view of KV caches whose parts lie on several ranks."""

import weakref
from itertools import count

from flexspec.codegen.batch import Int32
from flexspec.codegen.kv_storage import KVStorage
from flexspec.runtime.distributed.commands import CacheUpdate


class MirroredCaches:
    """Gives caches numbers, and keeps what the driver does to them until the next pass tells the other ranks."""

    def __init__(self) -> None:
        self._followed: weakref.WeakKeyDictionary[KVStorage, _Followed] = weakref.WeakKeyDictionary()
        self._dropped: list[int] = []
        self._next = count()

    def update(self, kv: KVStorage) -> CacheUpdate:
        """All that became of a cache since the last pass over it."""
        followed = self._followed.get(kv)
        if followed is None:
            followed = self._followed[kv] = _Followed(next(self._next))
            kv.on_move = followed.moved
            weakref.finalize(kv, self._dropped.append, followed.number)
        moves, followed.moves = followed.moves, []
        dropped = tuple(self._dropped)
        self._dropped.clear()
        return CacheUpdate(cache=followed.number, num_blocks=kv.num_blocks, block_size=kv.block_size, moves=moves, dropped=dropped)


class _Followed:
    """A cache's number, and moves that the other ranks have not heard of."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.moves: list[tuple[Int32, Int32]] = []

    def moved(self, sources: Int32, destinations: Int32) -> None:
        self.moves.append((sources, destinations))
