"""What a rank runs of each plan that is measured; all of them stay in memory, so that they can be measured in turn."""

from dataclasses import dataclass
from typing import Any

import torch

from flexspec.api.devices import ON_CPU
from flexspec.api.job import Job, join
from flexspec.api.lower import LowerOptions, lower
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.weight_store import WeightStore
from flexspec.models.load import load_model
from flexspec.parallel import ParallelPlan
from flexspec.passes.divide import is_divided
from flexspec.runtime.distributed.worker import Worker
from flexspec.strategy import Strategy

_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """One rank's part of a plan.

    Attributes:
        job: the plan's ranks; None of a plan for one device.
        model: as the driver of a replica uses it; None of other ranks.
        worker: of a rank that a driver commands; None of drivers, and of a rank that has no part.
        replica: its number.
    """

    job: Job | None = None
    model: CompiledModel | None = None
    worker: Worker | None = None
    replica: int = 0

    @property
    def workers(self) -> list[int]:
        """The ranks that this driver commands."""
        return self.job.topology.workers(self.replica) if self.job is not None else []


class Parts:
    """This rank's parts, each compiled when it is first asked for; all ranks ask for the same ones in the same order.

    Args:
        model: what is loaded.
        dtype: of weights and KV cache.
        rank: this one.
    """

    def __init__(self, model: str, dtype: str, *, rank: int) -> None:
        self._model, self._dtype, self._rank = model, dtype, rank
        self._whole: CompiledModel | None = None
        self._found: list[tuple[ParallelPlan, Part]] = []

    def of(self, plan: ParallelPlan) -> Part:
        """The part of a plan; how many micro-batches are in flight makes no other one."""
        for known, part in self._found:
            if _form(known) == _form(plan):
                return part
        part = self._new(plan)
        self._found.append((plan, part))
        return part

    def _new(self, plan: ParallelPlan) -> Part:
        if plan.world_size == 1:
            return Part(model=self._compiled_whole()) if self._rank == 0 else Part()
        job = join(plan, device=torch.device("cpu"), rank_timeout_s=_TIMEOUT_S)
        assert job is not None
        if not is_divided(plan):
            return Part(job=job, model=self._compiled_whole(), replica=job.place.replica)
        loaded = load_model(self._model, in_parts=True)
        compilation = lower(loaded, **self._options(), **job.part())
        if job.is_driver:
            return Part(job=job, model=job.driven_model(compilation), replica=job.place.replica)
        return Part(job=job, worker=job.worker(compilation), replica=job.place.replica)

    def _compiled_whole(self) -> CompiledModel:
        if self._whole is None:
            self._whole = lower(load_model(self._model), **self._options()).model
        return self._whole

    def _options(self) -> LowerOptions:
        return LowerOptions(
            dtype=getattr(torch, self._dtype),
            buckets=Strategy(dtype=self._dtype).buckets,
            store=WeightStore(),
            native=True,
            placement=ON_CPU,
        )


def _form(plan: ParallelPlan) -> Any:
    return plan.dp, plan.pp, plan.tp, plan.stage_layers, plan.partition
