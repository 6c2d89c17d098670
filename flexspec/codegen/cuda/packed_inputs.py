"""Small arrays that go to the device in one copy, and lie there in the same place every time."""

from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Bytes: kernels load so many at once."""


class PackedInputs:
    """Arrays of fixed shapes and types.

    Args:
        parts: shape and NumPy type of each, by name.
        device: where they are read.
        padding: what lies behind the arrays of some parts; zeros behind those of others.

    Attributes:
        tensors: on the device, by name.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[tuple[int, ...], type[np.generic]]],
        *,
        device: torch.device,
        padding: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._padding = padding
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in parts.values()]
        ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        is_gpu = device.type == "cuda"
        new_event: Any = torch.cuda.Event  # untyped in PyTorch
        self._copied = new_event() if is_gpu else None
        self._host = torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=is_gpu)
        self._device = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        block: npt.NDArray[np.uint8] = self._host.numpy()
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self.tensors: dict[str, Tensor] = {}
        for (name, (shape, kind)), start, size in zip(parts.items(), [0, *ends[:-1]], sizes, strict=True):
            self._arrays[name] = block[start : start + size].view(kind).reshape(shape)
            dtype = torch.from_numpy(np.empty(0, dtype=kind)).dtype
            self.tensors[name] = self._device[start : start + size].view(dtype).view(shape)

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copy arrays to the device, padding where one is smaller than its part; the host does not wait for the copy."""
        if self._copied is not None:
            self._copied.synchronize()  # the last copy may still be reading
        for name, array in arrays.items():
            own = self._arrays[name]
            own.fill(self._padding.get(name, 0))
            own[tuple(map(slice, array.shape))] = array
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
