"""The columns near the maximum of each row of logits, found in one native call."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flexspec.codegen.cpu.native.library import NativeLibrary, loaded_library
from flexspec.codegen.cpu.native.structures import TOP_COLUMNS_ARRAYS, CTopColumns

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_KINDS = dict(zip(TOP_COLUMNS_ARRAYS, (np.float64, np.int32, np.int32, np.float64, np.int64, np.int64, np.float64), strict=True))
_OF_CANDIDATES = ("ids", "scores")
_FIRST_ROWS, _FIRST_CAPACITY = 16, 1024


class RowLimits(NamedTuple):
    """What is sought in each row.

    Attributes:
        temperatures: [rows] above 0.
        fewest: [rows] as many columns at least, if so many are above minus infinity; at least 1.
        most: [rows] as many at most, equals of the last of them not counted; at least `fewest`.
    """

    temperatures: Sequence[float]
    fewest: Sequence[int]
    most: Sequence[int]


class ColumnSearch:
    """Columns at most `spread` times the temperature below their row's maximum, or at most 2, 4, … times as far where they are too few.

    Scores are (value - maximum) / temperature in float64. A row whose maximum is not finite has its first column, with score 0.

    Args:
        library: searches; what it is handed and gives lies in arrays that stay, so a search is for one thread.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._structure = CTopColumns()
        self._reference = ctypes.byref(self._structure)
        self._held: dict[str, npt.NDArray[Any]] = {}
        self._token_ids: Int64 | None = None
        self._rows = self._capacity = 0
        self._hold_rows(_FIRST_ROWS)
        self._hold_candidates(_FIRST_CAPACITY)

    def near(
        self, values: Float32, limits: RowLimits, *, spread: float, token_ids: Int64 | None
    ) -> tuple[Int64, Float64, list[int], list[float]]:
        """Those columns, ascending in each row.

        Args:
            values: float32 [rows, columns].
            limits: of the rows.
            spread: above 0.
            token_ids: [columns or more] the token of each column; None for 0, 1, 2, …

        Returns:
            [n] their tokens, [n] their scores, [rows + 1] where each row's begin, and [rows] the maxima, NaN where there is one.
        """
        count = self._call(self._library.near_columns, values, limits, spread, token_ids)
        held, rows = self._held, len(values)
        return held["ids"][:count].copy(), held["scores"][:count].copy(), held["bounds"][: rows + 1].tolist(), held["peaks"][:rows].tolist()

    def best(
        self, values: Float32, limits: RowLimits, *, spread: float, token_ids: Int64 | None
    ) -> tuple[list[tuple[list[int], list[float]]], list[float]]:
        """The first `fewest` of those columns in each row, the highest score and the lowest column first.

        Args:
            values: as `near`.
            limits: as `near`.
            spread: as `near`.
            token_ids: as `near`.

        Returns:
            Of each row the tokens and their shares of the softmax of the scores of all that `near` finds, none if the maximum is
            not finite; and the maxima as `near` gives them.
        """
        count = self._call(self._library.best_columns, values, limits, spread, token_ids)
        held, rows = self._held, len(values)
        tokens, shares, bounds = held["ids"][:count].tolist(), held["scores"][:count].tolist(), held["bounds"][: rows + 1].tolist()
        found = [(tokens[start:end], shares[start:end]) for start, end in pairwise(bounds)]
        return found, held["peaks"][:rows].tolist()

    def _call(self, function: Callable[[object], int], values: Float32, limits: RowLimits, spread: float, token_ids: Int64 | None) -> int:
        rows, columns = values.shape
        if values.strides[1] != 4 or values.strides[0] % 4:
            values = np.ascontiguousarray(values)
        if rows > self._rows:
            self._hold_rows(2 * rows)
        structure, held = self._structure, self._held
        held["temperatures"][:rows], held["fewest"][:rows], held["most"][:rows] = limits
        if token_ids is not self._token_ids:
            assert token_ids is None or (token_ids.dtype == np.int64 and token_ids.flags.c_contiguous)
            self._token_ids, structure.token_ids = token_ids, None if token_ids is None else token_ids.ctypes.data
        structure.values, structure.stride = values.ctypes.data, values.strides[0] // 4
        structure.rows, structure.cols, structure.spread = rows, columns, spread
        count = function(self._reference)
        if count > self._capacity:
            self._hold_candidates(2 * count)
            count = function(self._reference)
        return count

    def _hold_rows(self, rows: int) -> None:
        self._rows = rows
        for name in _KINDS:
            if name not in _OF_CANDIDATES:
                self._hold(name, rows + 1)

    def _hold_candidates(self, capacity: int) -> None:
        self._capacity = self._structure.capacity = capacity
        for name in _OF_CANDIDATES:
            self._hold(name, capacity)

    def _hold(self, name: str, size: int) -> None:
        held = self._held[name] = np.zeros(size, dtype=_KINDS[name])
        setattr(self._structure, name, held.ctypes.data)


class _Local(threading.local):
    search: ColumnSearch | None = None


_local = _Local()


def column_search() -> ColumnSearch | None:
    """This thread's; None while no native library is loaded, which it isn't for this alone."""
    if _local.search is None:
        library = loaded_library()
        if library is not None:
            _local.search = ColumnSearch(library)
    return _local.search
