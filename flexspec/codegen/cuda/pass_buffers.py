"""The inputs of a pass of one shape on the device: one block of integers, filled by one copy."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.codegen.batch import Batch, Int32
from flexspec.codegen.cuda.pass_shape import PassShape, request_sizes
from flexspec.codegen.cuda.tiles import query_tiles

_ALIGNMENT = 4
"""Integers: kernels load 16 bytes at once."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Where one input lies in the block, and what padding looks like there."""

    start: int
    shape: tuple[int, ...]
    padding: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class PassBuffers:
    """Static inputs, so that a captured graph reads a new pass where it read the last one.

    Padding touches nothing: its tokens have slot -1 and no context, its tiles no tokens, its output rows are row 0.

    Args:
        shape: of the pass.
        device: where the model runs.
        feature_size: columns of the features; 0 for none.
        dtype: of the features.

    Attributes:
        inputs: tensors by the names of the graph's inputs.
    """

    def __init__(self, shape: PassShape, *, device: torch.device, feature_size: int, dtype: torch.dtype) -> None:
        self._shape = shape
        parts = _layout(shape)
        size = sum(_aligned(part.size) for part in parts.values())
        is_gpu = device.type == "cuda"
        new_event: Any = torch.cuda.Event  # untyped in PyTorch
        self._copied = new_event() if is_gpu else None
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=is_gpu)
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        block: npt.NDArray[np.int32] = self._host.numpy()
        self._arrays = {name: block[part.start : part.start + part.size].reshape(part.shape) for name, part in parts.items()}
        self._padding = {name: part.padding for name, part in parts.items()}
        self.inputs: dict[str, Tensor] = {
            name: self._device[part.start : part.start + part.size].view(part.shape) for name, part in parts.items()
        }
        if feature_size:
            self.inputs["features"] = torch.zeros((shape.num_tokens, feature_size), dtype=dtype, device=device)

    def fill(self, batch: Batch, features: Tensor | None) -> None:
        """Copy a batch to the device; the copy is ordered with what the device does, and the host does not wait for it."""
        given: dict[str, npt.NDArray[np.integer]] = {
            "token_ids": batch.token_ids,
            "position_ids": batch.positions,
            "request_rows": batch.request_rows,
            "slots": batch.slots,
            "context_lens": batch.context_lens,
            "output_rows": batch.output_rows,
            "tail_starts": batch.tail_starts,
            "tail_bits": batch.tail_bits,
            "block_tables": batch.block_tables,
            "tiles": _tiles(batch, self._shape.block_tokens),
        }
        if self._copied is not None:
            self._copied.synchronize()  # the copy of the last pass may still be reading
        for name, array in self._arrays.items():
            array.fill(self._padding[name])
            if array.size:
                value = given[name]
                array[tuple(map(slice, value.shape))] = value
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if features is not None:
            self.inputs["features"][: len(features)].copy_(features, non_blocking=True)


def _tiles(batch: Batch, block_tokens: int) -> Int32:
    tiles = query_tiles(request_sizes(batch), block_tokens)
    tiles[:, 2] = batch.request_rows[tiles[:, 0]]  # a request may have no token in the pass
    return tiles


def _layout(shape: PassShape) -> dict[str, _Part]:
    tokens = (shape.num_tokens,)
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "token_ids": (tokens, 0),
        "position_ids": (tokens, 0),
        "request_rows": (tokens, 0),
        "slots": (tokens, -1),
        "context_lens": (tokens, 0),
        "output_rows": ((shape.num_outputs,), 0),
        "tail_starts": ((shape.num_requests,), 0),
        "tail_bits": ((shape.num_tokens, shape.tail_words), 0),
        "block_tables": ((shape.num_requests, shape.table_columns), 0),
        "tiles": ((shape.num_tiles, 4), 0),
    }
    ends = list(accumulate(_aligned(int(np.prod(dims))) for dims, _ in shapes.values()))
    return {
        name: _Part(start=start, shape=dims, padding=padding)
        for (name, (dims, padding)), start in zip(shapes.items(), [0, *ends[:-1]], strict=True)
    }


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
