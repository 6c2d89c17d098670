"""Which slots of a model's KV storage belong to which request."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flexspec.codegen.batch import Int32
from flexspec.codegen.kv_storage import KVStorage


@dataclass(kw_only=True)
class _Slots:
    """One request's blocks, its committed slots 0 … length-1, and the tail behind them.

    The first `kept_blocks` blocks stay with it until it is freed; those behind them only as long as they are in use.
    """

    blocks: list[int]
    block_table: Int32  # [blocks a row]
    kept_blocks: int
    length: int = 0
    tail: int = 0
    move_sources: list[int] = field(default_factory=list)
    move_destinations: list[int] = field(default_factory=list)


class KVCache:
    """Hands blocks of slots out to requests, and turns tree slots into committed ones.

    A request's slots are its committed ones and a tail of uncommitted ones. A step reserves a tail, a forward pass writes
    it, and `commit` keeps an accepted path of it or `rollback` keeps nothing. Slots are counted from 0 in each request;
    the block table says where they lie.

    A request gets blocks when it is allocated and whenever a tail needs more. Blocks that hold no committed slot after a
    commit go back, but for those of its allocation: so a block that nothing is in never keeps anyone else waiting, and
    with one block a request, as on CPUs, nothing is handed out or given back between allocation and `free`. At any time
    every block is either free or exactly one request's.

    Args:
        storage: the tensors.
        blocks_per_request: entries of a row of the block table, the most blocks of a request.
    """

    def __init__(self, storage: KVStorage, *, blocks_per_request: int = 1) -> None:
        self.storage = storage
        self.blocks_per_request = blocks_per_request
        self._free_blocks = list(range(storage.num_blocks - 1, -1, -1))
        self._requests: dict[int, _Slots] = {}
        self._moved: list[_Slots] = []

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds."""
        return len(self._free_blocks)

    @property
    def request_ids(self) -> frozenset[int]:
        """The requests that hold slots."""
        return frozenset(self._requests)

    def blocks_for(self, capacity: int) -> int:
        """Blocks that `capacity` slots take."""
        return -(-capacity // self.storage.block_size)

    def can_allocate(self, capacity: int) -> bool:
        """Whether a request of `capacity` slots, tail included, fits now."""
        return self.blocks_for(capacity) <= len(self._free_blocks)

    def allocate(self, request_id: int, capacity: int) -> None:
        """Give a new request room for `capacity` slots, committed ones and tail together, which it keeps until it is freed."""
        assert request_id not in self._requests, f"request {request_id} has slots already"
        count = self.blocks_for(capacity)
        slots = _Slots(blocks=[], block_table=np.zeros(self.blocks_per_request, dtype=np.int32), kept_blocks=count)
        self._requests[request_id] = slots
        self._take(slots, count)

    def free(self, request_id: int) -> None:
        """Take back a request's blocks and forget its moves; unknown ids are ignored."""
        slots = self._requests.pop(request_id, None)
        if slots is not None:
            self._free_blocks.extend(reversed(slots.blocks))
            self._moved = [other for other in self._moved if other is not slots]

    def length(self, request_id: int) -> int:
        """Number of committed slots."""
        return self._requests[request_id].length

    def capacity(self, request_id: int) -> int:
        """Slots of the blocks that it has, used or not."""
        return len(self._requests[request_id].blocks) * self.storage.block_size

    def missing_blocks(self, request_id: int, count: int) -> int:
        """Blocks that `reserve` would take for a tail of `count` slots; 0 if it has enough."""
        slots = self._requests[request_id]
        return max(0, self.blocks_for(slots.length + count) - len(slots.blocks))

    def block_table(self, request_id: int) -> Int32:
        """[blocks a row] int32: the physical block of each of the request's blocks; unused entries are 0."""
        return self._requests[request_id].block_table

    def physical_slots(self, request_id: int) -> list[int]:
        """Where the committed slots lie in the storage, in order."""
        slots = self._requests[request_id]
        return [self._physical(slots, slot) for slot in range(slots.length)]

    def reserve(self, request_id: int, count: int) -> int:
        """Make the tail `count` slots long, whatever it was before, with as many more blocks as it takes, and return its first slot."""
        slots = self._requests[request_id]
        assert not slots.move_sources, f"request {request_id} has moves that `apply_moves` has not made"
        if slots.length + count > len(slots.blocks) * self.storage.block_size:
            self._take(slots, self.blocks_for(slots.length + count) - len(slots.blocks))
        slots.tail = count
        return slots.length

    def commit(self, request_id: int, path: Sequence[int]) -> None:
        """Keep the slots `path` of the tail, in this order, behind the committed ones, and drop the rest.

        Slots that are out of place move when `apply_moves` is called, before the next pass.

        Args:
            request_id: whose tail.
            path: ascending indices into the tail; a prefill chunk commits `range(chunk)`.
        """
        slots = self._requests[request_id]
        kept = len(path)
        if kept and path[-1] != kept - 1:
            assert path[-1] < slots.tail, f"path {path} leaves the tail of {slots.tail} slots"
            for place, index in enumerate(path):
                if place != index:
                    slots.move_sources.append(self._physical(slots, slots.length + index))
                    slots.move_destinations.append(self._physical(slots, slots.length + place))
            self._moved.append(slots)
        assert kept <= slots.tail, f"{kept} slots committed of a tail of {slots.tail}"
        slots.length += kept
        slots.tail = 0
        if len(slots.blocks) > slots.kept_blocks:
            self._give_back(slots)

    def rollback(self, request_id: int, length: int | None = None) -> None:
        """Drop the tail, and the committed slots from `length` on if it is given."""
        slots = self._requests[request_id]
        slots.tail = 0
        if length is not None:
            assert length <= slots.length, f"cannot roll back from {slots.length} slots to {length}"
            slots.length = length
        self._give_back(slots)

    def apply_moves(self) -> None:
        """Make the moves of all commits since the last call, in one copy."""
        if not self._moved:
            return
        sources: list[int] = []
        destinations: list[int] = []
        for slots in self._moved:
            sources += slots.move_sources
            destinations += slots.move_destinations
            slots.move_sources = []
            slots.move_destinations = []
        moved, self._moved = self._moved, []
        self.storage.move(np.array(sources, dtype=np.int32), np.array(destinations, dtype=np.int32))
        for slots in moved:
            self._give_back(slots)

    def _take(self, slots: _Slots, count: int) -> None:
        held = len(slots.blocks)
        assert held + count <= self.blocks_per_request, f"{held + count} blocks exceed {self.blocks_per_request}, a row of the table"
        assert count <= len(self._free_blocks), f"{count} blocks wanted, {len(self._free_blocks)} free"
        slots.blocks += [self._free_blocks.pop() for _ in range(count)]
        slots.block_table[held : held + count] = slots.blocks[held:]

    def _give_back(self, slots: _Slots) -> None:
        """Free the blocks that it got for a tail and has nothing in; those that moves read from later, once they are made."""
        if len(slots.blocks) <= slots.kept_blocks or slots.move_sources:
            return
        used = max(slots.kept_blocks, self.blocks_for(slots.length))
        self._free_blocks += reversed(slots.blocks[used:])
        slots.block_table[used : len(slots.blocks)] = 0
        del slots.blocks[used:]

    def _physical(self, slots: _Slots, slot: int) -> int:
        block, offset = divmod(slot, self.storage.block_size)
        return slots.blocks[block] * self.storage.block_size + offset
