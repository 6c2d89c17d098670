"""Work that is recorded as a CUDA graph when it is first done, and replayed from then on."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

_WARM_UP_RUNS = 2
"""Before a capture: kernels are compiled and libraries take their workspaces."""

Result = TypeVar("Result")


class Captured(Generic[Result]):
    """Does one piece of work, which reads and writes the same memory every time, and may be done twice over.

    Args:
        capture: False launches every kernel from Python.
        pool: of the graphs' memory.
    """

    def __init__(self, *, capture: bool, pool: Any) -> None:
        self._capture = capture
        self._pool = pool
        self._graph: Any = None
        self._result: Result | None = None

    def run(self, work: Callable[[], Result]) -> Result:
        """What the work gives; with a capture it is in the same memory every time, which other work of the same pool may write too.

        Args:
            work: the same every time; it launches kernels, and must not wait for them.
        """
        if not self._capture:
            return _eager(work)
        if self._graph is None:
            self._record(work)
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _record(self, work: Callable[[], Result]) -> None:
        new_stream: Any = torch.cuda.Stream  # untyped in PyTorch
        side = new_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_RUNS):
                _eager(work)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=self._pool):
            self._result = _eager(work)


def _eager(work: Callable[[], Result]) -> Result:
    with torch.inference_mode():
        return work()
