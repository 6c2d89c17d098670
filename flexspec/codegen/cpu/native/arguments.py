"""What a pass hands to the native library: structures made once, of which only what changes is set."""

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from flexspec.codegen.batch import Batch
from flexspec.codegen.cpu.native import structures as c
from flexspec.codegen.kv_storage import KVStorage

_SMALLEST = 64


class BatchArguments:
    """A batch where the library finds it.

    Its arrays are copied to places that stay: that takes a tenth of the time of asking NumPy where they are.
    """

    def __init__(self) -> None:
        self._structure = c.CBatch()
        self._held: dict[str, npt.NDArray[Any]] = {name: self._hold(name, _SMALLEST) for name in c.BATCH_ARRAYS}
        self.reference = ctypes.byref(self._structure)

    def fill(self, batch: Batch) -> None:
        """Take in a batch."""
        for name, held in self._held.items():
            array: npt.NDArray[Any] = getattr(batch, name)
            if array.size > held.size:
                held = self._held[name] = self._hold(name, 2 * array.size)
            held[: array.size] = array.ravel()
        structure = self._structure
        structure.num_tokens = len(batch.token_ids)
        structure.num_outputs = len(batch.output_rows)
        structure.tail_words = batch.tail_bits.shape[1]
        structure.blocks_per_request = batch.block_tables.shape[1]

    def _hold(self, name: str, size: int) -> npt.NDArray[Any]:
        held = np.zeros(size, dtype=np.int64 if name in ("token_ids", "positions") else np.int32)
        setattr(self._structure, name, held.ctypes.data)
        return held


class CacheArguments:
    """A KV storage where the library finds it; it is not kept alive."""

    def __init__(self, kv: KVStorage) -> None:
        self._storage = weakref.ref(kv)
        self._structure = c.CCache(
            keys=kv.keys.data_ptr(),
            values=kv.values.data_ptr(),
            num_slots=kv.keys.shape[1],
            num_kv_heads=kv.shape.num_kv_heads,
            padded_head_dim=kv.shape.padded_head_dim,
            block_size=kv.block_size,
        )
        self.reference = ctypes.byref(self._structure)

    def is_for(self, kv: KVStorage) -> bool:
        """Whether it is that one's."""
        return self._storage() is kv
