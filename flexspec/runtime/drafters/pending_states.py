"""Hidden states of the LLM that wait to be fed to a draft model."""

from dataclasses import dataclass

import torch


@dataclass(kw_only=True)
class _Pending:
    """States [n, hidden] of text positions start … end - 1, in pieces."""

    start: int
    end: int
    pieces: list[torch.Tensor]


class PendingStates:
    """Keeps, for each request, the states of the text from the first unfed position on."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def add(self, request_id: int, start: int, states: torch.Tensor) -> None:
        """The states of text positions from `start` on; those of a request that was not heard of from its start are not kept."""
        if start == 0:
            self._pending[request_id] = _Pending(start=0, end=0, pieces=[])
        pending = self._pending.get(request_id)
        if pending is None:
            return
        assert start == pending.end, f"request {request_id}: states from position {start} on come after {pending.end} positions"
        pending.pieces.append(states)
        pending.end += len(states)

    def between(self, request_id: int, first: int, end: int) -> torch.Tensor | None:
        """[end - first, hidden] states of text positions first … end - 1, or None if some are missing; earlier ones are dropped."""
        pending = self._pending.get(request_id)
        if pending is None or pending.end < end:
            return None
        assert pending.start <= first < end, f"positions {first} to {end} wanted, of those from {pending.start} on"
        states = pending.pieces[0] if len(pending.pieces) == 1 else torch.cat(pending.pieces)
        if first > pending.start:
            states = states[first - pending.start :].clone()  # a view would keep all in memory
        pending.start, pending.pieces = first, [states]
        return states[: end - first]

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._pending.pop(request_id, None)
