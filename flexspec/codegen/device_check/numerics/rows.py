"""The part that runs every trial."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from flexspec.codegen.device_check.attempt import attempt
from flexspec.codegen.device_check.numerics.attention import attention_trials
from flexspec.codegen.device_check.numerics.commit import commit_trials
from flexspec.codegen.device_check.numerics.distributions import distribution_trials
from flexspec.codegen.device_check.numerics.drafting import drafting_trials
from flexspec.codegen.device_check.numerics.rope import rope_trials
from flexspec.codegen.device_check.numerics.splits import split_trials
from flexspec.codegen.device_check.numerics.stochastic import residual_trials
from flexspec.codegen.device_check.numerics.trial import Trial
from flexspec.codegen.device_check.numerics.walk import walk_trials
from flexspec.codegen.device_check.part import Context, Row

# What a pass needs first.
TRIALS = (attention_trials, split_trials, rope_trials, commit_trials, walk_trials, distribution_trials, residual_trials, drafting_trials)

_MOST_THREADS = 8
"""Nearly all of the time goes to compiling kernels, which does not hold Python's lock for long."""


def numerics_rows(context: Context) -> Iterator[Row]:
    """A row for each trial: its largest error and what that may be."""
    trials = [trial for make in TRIALS for trial in make(context)]
    threads = 1 if context.is_dry else min(_MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        for trial, row in zip(trials, pool.map(lambda trial: _row(context, trial), trials), strict=True):
            # What failed among others at the same time gets another chance alone.
            found = _row(context, trial) if row is not None and "problem" in row and threads > 1 else row
            if found is not None:
                yield found


def _row(context: Context, trial: Trial) -> Row | None:
    """None if there is no time for it."""
    if not context.has_time(f"{trial.kernel}, {trial.case}"):
        return None
    return attempt({"kernel": trial.kernel, "case": trial.case, "bound": trial.bound}, lambda: _measure(trial))


def _measure(trial: Trial) -> Row:
    error = trial.error()
    return {"error": error, "ok": error <= trial.bound}
