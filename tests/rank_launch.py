"""Ranks for tests, on this machine, one job at a time."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from flexspec.api.lower import captured_graph
from flexspec.models.load import load_model
from flexspec.parallel import ParallelPlan
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from parallel_cases import plan_of

_PROGRAM = Path(__file__).parent / "rank_program.py"


@contextmanager
def alone() -> Iterator[None]:
    """One job at a time: tests that run beside this one wait for it."""
    with open(Path(tempfile.gettempdir()) / f"flexspec-test-ranks-{os.getuid()}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Job:
    """Ranks that run cases of `rank_program`."""

    def __init__(self, groups: Sequence[dict[str, Any]], num_ranks: int, folder: Path) -> None:
        cases = folder / "cases.json"
        cases.write_text(json.dumps(groups))
        self._results = [folder / f"results.{rank}.json" for rank in range(num_ranks)]
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
        self._logs = [folder / f"log.{rank}.txt" for rank in range(num_ranks)]
        self._processes = []
        for rank, log in enumerate(self._logs):
            with log.open("w") as out:
                command = [sys.executable, "-W", "error", str(_PROGRAM), str(cases), str(folder / "results")]
                environment = common | {"RANK": str(rank)}
                self._processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT))

    def results(self, timeout_s: float = 120) -> list[dict[str, Any]]:
        """What came of the cases on every rank."""
        ends = monotonic() + timeout_s
        try:
            while any(process.poll() is None for process in self._processes):
                assert monotonic() < ends and not any(process.poll() for process in self._processes), self._said()
                sleep(0.05)
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
        assert not any(process.returncode for process in self._processes), self._said()
        return [json.loads(file.read_text()) for file in self._results]

    def _said(self) -> str:
        return "\n".join(f"rank {rank}:\n{log.read_text()}" for rank, log in enumerate(self._logs))


def divided(folder: str, **degrees: Any) -> dict[str, Any]:
    """The fields of a plan that divides a model as `column_then_row` does."""
    graph = captured_graph(load_model(folder, in_parts=True))
    with torch.no_grad():
        run_passes(graph, FLAT)
    plan: ParallelPlan = plan_of(graph, **degrees)
    return {"tp": plan.tp, "partition": {place: list(names) for place, names in plan.partition.items()}}
