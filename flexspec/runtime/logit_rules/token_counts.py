"""How often each token occurs in a growing text."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

_FIRST_ROOM = 64


class TokenCounts:
    """Counts the tokens of a text incrementally, so that a node costs no more in a long text than its distinct tokens."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: Int64 = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._counts: Int64 = np.zeros(_FIRST_ROOM, dtype=np.int64)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by `tokens`."""
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids, self._counts = np.resize(self._ids, 2 * place), np.pad(self._counts, (0, place))
            self._ids[place] = token
            self._counts[place] += 1

    def after(self, path: Sequence[int], below: int) -> tuple[Int64, Int64]:
        """[k] the distinct tokens below `below` in the text and `path` after it, and [k] how often each occurs; nothing is kept."""
        size = len(self._places)
        ids, counts = self._ids[:size], self._counts[:size]
        if path:
            new = [token for token in dict.fromkeys(path) if token not in self._places]
            ids = np.append(ids, np.array(new, dtype=np.int64))
            counts = np.append(counts, np.zeros(len(new), dtype=np.int64))
            for token in path:
                counts[self._places[token] if token in self._places else size + new.index(token)] += 1
        known = ids < below
        return ids[known], counts[known]
