"""Zero-filled tensors that take memory only where they are written."""

import math

import numpy as np
import torch

_ALIGNMENT = 64


def lazy_zeros(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros of `size`, aligned to cache lines; the system gives a page when it is first written (`torch.zeros` writes all).

    Raises:
        MemoryError: if the system refuses that much.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    raw = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(size)
