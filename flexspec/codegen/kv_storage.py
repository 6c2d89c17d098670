"""The keys and values of all requests of one compiled model."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from flexspec.codegen.batch import Int32
from flexspec.codegen.lazy_memory import lazy_zeros
from flexspec.errors import UsageError

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class KVShape:
    """What one slot of the cache holds.

    `head_dim` is the model's; `padded_head_dim` is what is stored, a multiple of what the target's kernels load at once,
    the rest zeros. The cache is on `device`, where the model runs, in blocks of `page_size` slots; None takes blocks of any size.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    padded_head_dim: int
    dtype: torch.dtype
    device: torch.device = _CPU
    page_size: int | None = None

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.padded_head_dim * self.dtype.itemsize


class KVStorage:
    """Two tensors `keys` and `values`, [layers, blocks * block_size, kv_heads, padded_head_dim], zero-filled.

    Attributes:
        on_move: told of every move, for caches whose parts lie on several devices.

    Raises:
        UsageError: if the system refuses that much memory.
    """

    def __init__(self, shape: KVShape, *, num_blocks: int, block_size: int) -> None:
        self.shape = shape
        self.on_move: Callable[[Int32, Int32], None] | None = None
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = (shape.num_layers, num_blocks * block_size, shape.num_kv_heads, shape.padded_head_dim)
        try:
            self.keys, self.values = (_zeros(size, shape) for _ in range(2))
        except (MemoryError, torch.OutOfMemoryError):
            gigabytes = num_blocks * block_size * shape.bytes_per_slot / 1e9
            raise UsageError(f"a KV cache of {gigabytes:.2f} GB can't be had: give a smaller max_len or max_batch") from None

    @classmethod
    def of_requests(cls, shape: KVShape, slots: int, *, num_requests: int = 1) -> "KVStorage":
        """Room for requests of `slots` slots each, in blocks of the kind that `shape` asks for: one each if it takes any."""
        block_size = shape.page_size or slots
        return cls(shape, num_blocks=num_requests * -(-slots // block_size), block_size=block_size)

    @property
    def block_table(self) -> Int32:
        """[1, num_blocks] int32: the block table of a single request that has all blocks."""
        return np.arange(self.num_blocks, dtype=np.int32)[np.newaxis]

    @property
    def num_bytes(self) -> int:
        """Bytes of both tensors."""
        return self.keys.nbytes + self.values.nbytes

    def move(self, sources: Int32, destinations: Int32) -> None:
        """Copy whole physical slots over all layers; sources are read before any destination is written.

        Args:
            sources: [n] physical slots (block * block_size + offset).
            destinations: [n] physical slots, distinct.
        """
        if not len(sources):
            return
        if self.on_move is not None:
            self.on_move(sources, destinations)
        if self.keys.is_cuda:
            # Triton is there only where there are GPUs.
            from flexspec.codegen.cuda.kernels.kv_commit import kv_commit

            pairs = torch.from_numpy(np.stack([sources, destinations])).to(self.keys.device, non_blocking=True)
            kv_commit(self.keys, self.values, pairs[0], pairs[1])
            return
        src = torch.from_numpy(np.ascontiguousarray(sources, dtype=np.int64))
        dst = torch.from_numpy(np.ascontiguousarray(destinations, dtype=np.int64))
        for cache in (self.keys, self.values):
            # 8-bit floats as bytes: not everything can be done with them.
            numbers = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
            numbers.index_copy_(1, dst, numbers.index_select(1, src))


def _zeros(size: tuple[int, ...], shape: KVShape) -> torch.Tensor:
    return lazy_zeros(size, shape.dtype) if shape.device.type == "cpu" else torch.zeros(size, dtype=shape.dtype, device=shape.device)
