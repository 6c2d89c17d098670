"""A rank of the measurement: `torchrun … -m flexspec.calibration.report.ranks JOB RESULT`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flexspec.calibration.report.job_file import JobFile, Run, load_job
from flexspec.calibration.report.parts import Part, Parts
from flexspec.calibration.report.timing import TimedEngine, record
from flexspec.runtime.distributed.outcomes import tell
from flexspec.runtime.drafters.synthetic import SyntheticDrafter

_VOCABULARY = 30000
"""Prompts are random tokens below this."""


def main(job_path: str, result_path: str) -> None:
    """Measure all strategies of a job, round by round; the first rank writes seconds of a step by strategy and round."""
    torch.set_num_threads(1)
    job = load_job(Path(job_path))
    measurement = _Measurement(job, rank=int(os.environ["RANK"]))
    found = measurement.seconds()
    if found is not None:
        Path(result_path).write_text(json.dumps(found), encoding="utf-8")


class _Measurement:
    def __init__(self, job: JobFile, *, rank: int) -> None:
        self._job, self._rank = job, rank
        self._parts = Parts(job.model, job.dtype, rank=rank)
        most = max(run.batch for run in job.runs)
        self._prompts = np.random.default_rng(0).integers(1, _VOCABULARY, size=(most, job.sizes.prompt_tokens)).tolist()
        self._drafters: dict[int, SyntheticDrafter] = {}
        for run in sorted(job.runs, key=lambda run: -run.plan.world_size):
            self._record(self._parts.of(run.plan))
        self._engines = [self._engine(run) for run in job.runs]
        jobs = [part.job for run in job.runs if (part := self._parts.of(run.plan)).job is not None]
        self._ranks = jobs[0].ranks if jobs[0] is not None else None
        assert self._ranks is not None
        self._everyone = self._ranks.group(range(self._ranks.size))

    def seconds(self) -> dict[str, Any] | None:
        """By strategy, then by round; on the first rank."""
        rounds: list[list[float]] = []
        order = list(range(len(self._job.runs)))
        for number in range(self._job.sizes.rounds + 1):  # the first warms up
            found = [0.0] * len(order)
            for place in order[:: 1 if number % 2 else -1]:
                found[place] = self._measured(self._job.runs[place], self._engines[place])
            rounds.append(found)
        lost = max(drafter.lost_share for drafter in self._drafters.values()) if self._drafters else 0.0
        most_lost = max(self._gathered(lost))
        return None if self._rank else {"seconds": [list(times) for times in zip(*rounds[1:], strict=True)], "lost": most_lost}

    def _gathered(self, value: Any) -> list[Any]:
        assert self._ranks is not None
        return self._ranks.gather_objects(value, self._everyone)

    def _record(self, part: Part) -> None:
        if part.model is not None and id(part.model) not in self._drafters:
            drafter = self._drafters[id(part.model)] = SyntheticDrafter(self._job.sizes.acceptance)
            record(part.model, self._job.sizes, self._prompts, drafter)
        self._end(part)

    def _engine(self, run: Run) -> TimedEngine | None:
        part = self._parts.of(run.plan)
        if part.model is None:
            return None
        requests = list(enumerate(self._prompts[: run.batch]))[part.replica :: run.plan.dp]
        return TimedEngine(part.model, run, self._job.sizes, requests, self._drafters[id(part.model)])

    def _measured(self, run: Run, engine: TimedEngine | None) -> float:
        """Seconds of a step, the mean over the replicas."""
        part = self._parts.of(run.plan)
        mine = None
        if engine is not None:
            job = part.job
            mine = engine.step_seconds(lambda: job.ranks.gather_objects(None, job.drivers) if job and job.drivers else None)
        self._end(part)
        times: list[float] = [one for one in self._gathered(mine) if one is not None]
        return sum(times) / len(times)

    def _end(self, part: Part) -> None:
        """The driver lets its workers go; they have served until then."""
        if part.worker is not None:
            part.worker.serve()
        elif part.job is not None and part.model is not None:
            tell(part.job.ranks, part.workers, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
