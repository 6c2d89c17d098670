"""Memory that ranks which are threads share, with words that they wait for."""

from time import monotonic

import torch
from torch import Tensor

from flexspec.codegen.cpu.native import load_library

_PATIENCE_S = 30


class ThreadRegion:
    """See `SharedRegion` and `SharedMemory`; all threads use the same one."""

    def __init__(self, num_bytes: int) -> None:
        self.memory: Tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        self._library = load_library()

    def publish(self, byte: int, value: int) -> None:
        self._library.publish(self.memory.data_ptr() + byte, value)

    def wait(self, byte: int, least: int, *, owner: int, limit_s: float | None = None) -> None:
        ends = monotonic() + (_PATIENCE_S if limit_s is None else limit_s)
        while not self._library.wait(self.memory.data_ptr() + byte, least, 0, 50_000, 10_000_000):
            assert monotonic() < ends, f"thread {owner} did not come"
