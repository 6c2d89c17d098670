"""Ranks for tests, on this machine, one job at a time."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from flexspec.api import lower as lowering
from flexspec.models.load import load_model
from flexspec.parallel import ParallelPlan
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from parallel_cases import plan_of

COLUMN_THEN_ROW = "column then row"
"""In the place of a partition: as `divided` says."""
_PROGRAM = Path(__file__).parent / "rank_program.py"


@contextmanager
def alone() -> Iterator[None]:
    """One job at a time: tests that run beside this one wait for it."""
    with open(Path(tempfile.gettempdir()) / f"flexspec-test-ranks-{os.getuid()}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Job:
    """A process that runs cases of `rank_program` alone, and then forks ranks that run others.

    Args:
        groups: for the ranks.
        num_ranks: how many.
        folder: for files.
        alone: groups that run on one device.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], num_ranks: int, folder: Path, *, alone: Sequence[dict[str, Any]] = ()) -> None:
        cases = folder / "cases.json"
        cases.write_text(json.dumps({"alone": alone, "ranks": groups}))
        self._results = [folder / f"results.{name}.json" for name in ("alone", *range(num_ranks))]
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",  # it says so when a process forks that has used them
        }
        self._log = folder / "log.txt"
        command = [sys.executable, "-W", "error", str(_PROGRAM), str(cases), str(folder / "results"), str(num_ranks)]
        with self._log.open("w") as out:
            self._process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def results(self, timeout_s: float = 300) -> list[dict[str, Any]]:
        """What came of the cases on one device, and then on every rank."""
        status: int | None = None
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert status == 0, self._log.read_text()
        return [json.loads(file.read_text()) for file in self._results]


def divided(folder: str, **degrees: Any) -> dict[str, Any]:
    """The fields of a plan that divides a model as `column_then_row` does."""
    graph = lowering.captured_graph(load_model(folder, in_parts=True), own_dtype=True)
    with torch.no_grad():
        run_passes(graph, FLAT)
    plan: ParallelPlan = plan_of(graph, **degrees)
    return {"tp": plan.tp, "partition": {place: list(names) for place, names in plan.partition.items()}}
