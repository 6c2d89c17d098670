"""Hidden states of the LLM that wait to be fed to a draft model."""

from collections import deque

import numpy as np
import numpy.typing as npt
import torch

Float32 = npt.NDArray[np.float32]


class _Pending:
    """States [n, hidden] of text positions start … end - 1, in pieces."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.pieces: deque[Float32] = deque()


class PendingStates:
    """Keeps, for each request, the states of the text from the first unfed position on."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def add(self, request_id: int, start: int, states: torch.Tensor) -> None:
        """The states of text positions from `start` on; those of a request that was not heard of from its start are not kept."""
        if start == 0:
            self._pending[request_id] = _Pending()
        pending = self._pending.get(request_id)
        if pending is None:
            return
        assert start == pending.end, f"request {request_id}: states from position {start} on come after {pending.end} positions"
        pending.pieces.append(states.numpy())
        pending.end += len(states)

    def between(self, request_id: int, first: int, end: int) -> Float32 | None:
        """[end - first, hidden] states of text positions first … end - 1, or None if some are missing; earlier pieces are dropped."""
        pending = self._pending.get(request_id)
        if pending is None or pending.end < end:
            return None
        assert pending.start <= first < end, f"positions {first} to {end} wanted, of those from {pending.start} on"
        pieces = pending.pieces
        while pending.start + len(pieces[0]) <= first:
            pending.start += len(pieces.popleft())
        states = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return states[first - pending.start : end - pending.start]

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._pending.pop(request_id, None)
