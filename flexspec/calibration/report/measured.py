"""Predictions and measurements of one model, workload by workload."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flexspec.calibration.report.job_file import JobFile, Run
from flexspec.calibration.report.known_acceptance import expected_tokens
from flexspec.calibration.report.measured_models import DTYPE, MeasuredModel
from flexspec.calibration.report.priced import Form, priced
from flexspec.calibration.report.sizes import Sizes
from flexspec.calibration.report.statistics import Regret, best, regret
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.result import Candidate

_RANKS = "flexspec.calibration.report.ranks"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model and batch.

    Attributes:
        model: in words.
        batch: requests at once.
        predicted: what the search says of every form.
        times: seconds a token that were measured, by form and round.
    """

    model: str
    batch: int
    predicted: Mapping[Form, Candidate]
    times: Mapping[Form, Sequence[float]]

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.model}, batch {self.batch}"

    def predicted_ms(self, form: Form) -> float:
        """A token of a request."""
        return self.predicted[form].predicted.ms_per_token

    def measured_ms(self, form: Form) -> float:
        """The same, the median of the rounds."""
        return 1e3 * float(np.median(self.times[form]))

    @property
    def choice(self) -> Form:
        """What is predicted to be fastest."""
        return min(self.predicted, key=self.predicted_ms)

    @property
    def best(self) -> Form:
        """What was fastest."""
        return best(self.times)

    def regret(self, form: Form) -> Regret:
        """Of a form."""
        return regret(self.times, form)


def measure(model: MeasuredModel, hardware: Hardware, sizes: Sizes) -> tuple[list[Workload], float]:
    """All workloads of a model, and the largest share of drafts that had to be left out in any strategy."""
    record = model.record()
    predictions = {batch: priced(record, hardware, sizes, batch, DTYPE) for batch in sizes.batches}
    runs = [
        (form, Run(batch=batch, tree=form.tree, plan=candidate.strategy.parallel))
        for batch, candidates in predictions.items()
        for form, candidate in candidates.items()
    ]
    found = _run(JobFile(model=model.source, dtype=DTYPE, sizes=sizes, runs=[run for _, run in runs]))
    times: dict[int, dict[Form, list[float]]] = {batch: {} for batch in sizes.batches}
    for (form, run), seconds in zip(runs, found["seconds"], strict=True):
        emitted = expected_tokens((1,) * form.tree, [sizes.acceptance])
        times[run.batch][form] = [one / emitted for one in seconds]
    workloads = [Workload(model=model.title, batch=batch, predicted=predictions[batch], times=times[batch]) for batch in sizes.batches]
    return workloads, float(found["lost"])


def _run(job: JobFile) -> Any:
    """What the ranks measure."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "job.json", Path(folder) / "result.json"
        job.save(asked)
        starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.sizes.devices)]
        subprocess.run([*starter, "-m", _RANKS, str(asked), str(answer)], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        return json.loads(answer.read_text(encoding="utf-8"))
