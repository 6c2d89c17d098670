"""Predictions and measurements of one model, workload by workload."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from flexspec.calibration.report.job_file import JobFile, Run
from flexspec.calibration.report.known_acceptance import expected_tokens
from flexspec.calibration.report.measured_models import DTYPE, MeasuredModel
from flexspec.calibration.report.priced import Form, priced
from flexspec.calibration.report.sizes import Sizes
from flexspec.calibration.report.statistics import Regret, best, regret
from flexspec.errors import UsageError
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.result import Candidate

_RANKS = "flexspec.calibration.report.ranks"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model and batch.

    Attributes:
        model: in words.
        batch: requests at once.
        predicted: what the search says of every form, by each calibration.
        times: seconds a token that were measured, by form and round.
    """

    model: str
    batch: int
    predicted: Mapping[Form, Sequence[Candidate]]
    times: Mapping[Form, Sequence[float]]

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.model}, batch {self.batch}"

    def predicted_ms(self, form: Form) -> float:
        """A token of a request, the mean of the calibrations."""
        return mean(one.predicted.ms_per_token for one in self.predicted[form])

    def measured_ms(self, form: Form) -> float:
        """A token of a request, the median of the rounds."""
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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of one model.

    Attributes:
        model: which.
        times: seconds a token, by batch, form and round.
        lost: the largest share of drafts that had to be left out in any strategy.
    """

    model: MeasuredModel
    times: Mapping[int, Mapping[Form, Sequence[float]]]
    lost: float


def measure(model: MeasuredModel, hardware: Hardware, sizes: Sizes) -> Measured:
    """Run every strategy, with the division of work that the search takes on this hardware.

    Raises:
        UsageError: if the ranks that run them fail.
    """
    record = model.record()
    runs = [
        (form, Run(batch=batch, tree=form.tree, plan=candidate.strategy.parallel))
        for batch in sizes.batches
        for form, candidate in priced(record, hardware, sizes, batch, DTYPE).items()
    ]
    found = _run(JobFile(model=model.source, dtype=DTYPE, sizes=sizes, runs=[run for _, run in runs]))
    times: dict[int, dict[Form, list[float]]] = {batch: {} for batch in sizes.batches}
    for (form, run), seconds in zip(runs, found["seconds"], strict=True):
        emitted = expected_tokens((1,) * form.tree, [sizes.acceptance])
        times[run.batch][form] = [one / emitted for one in seconds]
    return Measured(model=model, times=times, lost=float(found["lost"]))


def compared(measured: Measured, calibrations: Sequence[Hardware], sizes: Sizes) -> list[Workload]:
    """Predictions by all calibrations beside what was measured, by batch.

    Raises:
        UsageError: if none of them prices a form that was measured.
    """
    record = measured.model.record()
    workloads = []
    for batch, times in measured.times.items():
        priced_by = [priced(record, hardware, sizes, batch, DTYPE) for hardware in calibrations]
        predicted = {form: _predicted(form, priced_by, measured.model.title, batch) for form in times}
        workloads.append(Workload(model=measured.model.title, batch=batch, predicted=predicted, times=times))
    return workloads


def _predicted(form: Form, priced_by: Sequence[Mapping[Form, Candidate]], title: str, batch: int) -> list[Candidate]:
    """What calibrations say of a form that was measured; which of them say nothing is told."""
    found = [prices[form] for prices in priced_by if form in prices]
    if not found:
        raise UsageError(f"{title}, batch {batch}: {form} was measured, and no calibration prices it: calibrate again")
    if len(found) < len(priced_by):
        places = ", ".join(str(place) for place, prices in enumerate(priced_by, 1) if form not in prices)
        print(f"{title}, batch {batch}: calibration {places} does not price {form}; its mean is that of the others", file=sys.stderr)
    return found


def run_program(arguments: Sequence[str], what: str, *, fix: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a Python module with its arguments, which says itself what goes wrong.

    Raises:
        UsageError: if it fails; `what` it did and the `fix` are named.
    """
    status = subprocess.run([sys.executable, "-m", *arguments], env=environment).returncode
    if status:
        raise UsageError(f"{what} failed with status {status}, for the reason above: {fix}")


def _run(job: JobFile) -> Any:
    """What the ranks measure."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "job.json", Path(folder) / "result.json"
        job.save(asked)
        starter = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(job.sizes.devices)]
        run_program(
            [*starter, "-m", _RANKS, str(asked), str(answer)],
            f"measuring {job.model}",
            fix="mend that, and start again",
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return json.loads(answer.read_text(encoding="utf-8"))
