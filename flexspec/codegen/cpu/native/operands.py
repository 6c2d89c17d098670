"""What the operators of a native program work on: columns of buffers, fused prologues, rotary tables."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

CACHE_ALIGNMENT = 16  # floats of the widest vector


def padded_head_dim(head_dim: int) -> int:
    """Elements that the KV cache stores for a head: whole vectors, the rest zeros."""
    return -(-head_dim // CACHE_ALIGNMENT) * CACHE_ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The columns start … start+cols-1 of a row-major float32 buffer [max_rows, width]."""

    buffer: Tensor
    start: int
    cols: int

    def __post_init__(self) -> None:
        assert self.buffer.dtype == torch.float32 and self.buffer.dim() == 2 and self.buffer.stride(1) == 1
        assert 0 <= self.start and 0 < self.cols and self.start + self.cols <= self.buffer.shape[1]

    @property
    def max_rows(self) -> int:
        """Rows that the buffer has room for."""
        return self.buffer.shape[0]


@dataclass(frozen=True, kw_only=True)
class NormPrologue:
    """A linear's input is normalised first: RMSNorm or LayerNorm over all its columns, weight and bias [in_features]."""

    kind: Literal["rms", "layer"]
    weight: Tensor
    bias: Tensor | None = None
    eps: float


@dataclass(frozen=True, kw_only=True)
class GatePrologue:
    """A linear's input is activation(gate) * up."""

    gate: Matrix
    up: Matrix
    activation: str


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary embedding of the first `dim` elements of every head.

    `cos` and `sin` are [tokens, dim], filled by the caller before each run; columns i and i + dim/2 are pair i's, which is the elements
    i and i + dim/2, or, if `interleaved`, 2 i and 2 i + 1.
    """

    cos: Matrix
    sin: Matrix
    dim: int
    interleaved: bool = False
