"""Which slots of a model's KV storage belong to which request."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flexspec.codegen.batch import Int32
from flexspec.codegen.kv_storage import KVStorage


@dataclass(kw_only=True)
class _Slots:
    """One request's blocks, its committed slots 0 … length-1, and the tail behind them."""

    blocks: list[int]
    block_table: Int32  # [blocks a row]
    length: int = 0
    tail: int = 0
    move_sources: list[int] = field(default_factory=list)
    move_destinations: list[int] = field(default_factory=list)


class KVCache:
    """Allocates blocks to requests, and turns tree slots into committed ones.

    A request's slots are its committed ones and a tail of uncommitted ones. A step reserves a tail, a forward pass writes
    it, and `commit` keeps an accepted path of it or `rollback` keeps nothing. Slots are counted from 0 in each request;
    the block table says where they lie. On a CPU a request has one large block, on paged targets several.

    Args:
        storage: the tensors.
        blocks_per_request: entries of a row of the block table.
    """

    def __init__(self, storage: KVStorage, *, blocks_per_request: int = 1) -> None:
        self.storage = storage
        self._blocks_per_request = blocks_per_request
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

    def can_allocate(self, capacity: int) -> bool:
        """Whether a request of `capacity` slots, tail included, fits now."""
        return self._blocks_for(capacity) <= len(self._free_blocks)

    def allocate(self, request_id: int, capacity: int) -> None:
        """Give a new request room for `capacity` slots, committed ones and tail together."""
        assert request_id not in self._requests, f"request {request_id} has slots already"
        count = self._blocks_for(capacity)
        assert count <= len(self._free_blocks), f"{count} blocks wanted, {len(self._free_blocks)} free"
        assert count <= self._blocks_per_request, f"{capacity} slots need {count} blocks, a row of the table has {self._blocks_per_request}"
        blocks = [self._free_blocks.pop() for _ in range(count)]
        table = np.zeros(self._blocks_per_request, dtype=np.int32)
        table[:count] = blocks
        self._requests[request_id] = _Slots(blocks=blocks, block_table=table)

    def free(self, request_id: int) -> None:
        """Take back a request's blocks and forget its moves; unknown ids are ignored."""
        slots = self._requests.pop(request_id, None)
        if slots is not None:
            self._free_blocks.extend(reversed(slots.blocks))
            self._moved = [other for other in self._moved if other is not slots]

    def length(self, request_id: int) -> int:
        """Number of committed slots."""
        return self._requests[request_id].length

    def block_table(self, request_id: int) -> Int32:
        """[blocks a row] int32: the physical block of each of the request's blocks; unused entries are 0."""
        return self._requests[request_id].block_table

    def physical_slots(self, request_id: int) -> list[int]:
        """Where the committed slots lie in the storage, in order."""
        slots = self._requests[request_id]
        return [self._physical(slots, slot) for slot in range(slots.length)]

    def reserve(self, request_id: int, count: int) -> int:
        """Make the tail `count` slots long, whatever it was before, and return its first slot."""
        slots = self._requests[request_id]
        assert not slots.move_sources, f"request {request_id} has moves that `apply_moves` has not made"
        capacity = len(slots.blocks) * self.storage.block_size
        assert slots.length + count <= capacity, f"request {request_id}: {slots.length} + {count} slots exceed {capacity}"
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

    def rollback(self, request_id: int, length: int | None = None) -> None:
        """Drop the tail, and the committed slots from `length` on if it is given."""
        slots = self._requests[request_id]
        slots.tail = 0
        if length is not None:
            assert length <= slots.length, f"cannot roll back from {slots.length} slots to {length}"
            slots.length = length

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
        self._moved = []
        self.storage.move(np.array(sources, dtype=np.int32), np.array(destinations, dtype=np.int32))

    def _blocks_for(self, capacity: int) -> int:
        return -(-capacity // self.storage.block_size)

    def _physical(self, slots: _Slots, slot: int) -> int:
        block, offset = divmod(slot, self.storage.block_size)
        return slots.blocks[block] * self.storage.block_size + offset
