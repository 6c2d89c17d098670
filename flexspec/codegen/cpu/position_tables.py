"""Values that depend on positions alone, such as rotary tables, computed once a position."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from flexspec.codegen.batch import Int64

_CHUNK = 256
"""Positions computed together. Chunks always begin and end at the same ones, so a position's values never depend on what ran before."""


class PositionTables:
    """Looks up what a pass needs of its positions; what is not there yet is computed first.

    Args:
        graph: positions [N] → values [N, …], as `position_graph` gives it.
        max_positions: as in `CompiledModel`.
        outputs: float32 [rows, columns] for each value, contiguous: where a pass's values go.
    """

    def __init__(self, graph: fx.GraphModule, *, max_positions: int | None, outputs: Sequence[Tensor]) -> None:
        self._graph = graph
        self._max_positions = max_positions
        self._outputs: list[npt.NDArray[np.float32]] = [output.numpy() for output in outputs]
        self._tables = [np.empty((0, output.shape[1]), dtype=np.float32) for output in outputs]
        self._num_known = 0 if outputs else np.iinfo(np.int64).max  # nothing to look up

    def fill(self, positions: Int64) -> None:
        """Put the values at `positions` into the first rows of the outputs."""
        if np.maximum.reduce(positions) >= self._num_known:
            self._extend(int(positions.max()) + 1)
        for table, output in zip(self._tables, self._outputs, strict=True):
            table.take(positions, axis=0, out=output[: len(positions)], mode="clip")

    def _extend(self, end: int) -> None:
        assert self._max_positions is None or end <= self._max_positions, f"position {end - 1} of {self._max_positions}"
        chunks = [[table] for table in self._tables]
        while self._num_known < end:
            stop = self._num_known + _CHUNK
            if self._max_positions is not None:
                stop = min(stop, self._max_positions)
            with torch.inference_mode():
                values = self._graph(torch.arange(self._num_known, stop))
            for parts, value in zip(chunks, values, strict=True):
                parts.append(value.float().reshape(stop - self._num_known, -1).numpy())
            self._num_known = stop
        self._tables = [np.concatenate(parts) for parts in chunks]
