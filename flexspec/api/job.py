"""This process among the ranks of a plan: joining them, and what it runs of the model there."""

import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from flexspec.api.lower import Compilation, ModelPart
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.errors import UsageError
from flexspec.parallel import DEFAULT_RANK_TIMEOUT_S, ParallelPlan
from flexspec.runtime.distributed.heartbeat import Heartbeat
from flexspec.runtime.distributed.outcomes import result, tell
from flexspec.runtime.distributed.rank_failure import RankFailure, memory_told
from flexspec.runtime.distributed.ranks import Ranks, world_size
from flexspec.runtime.distributed.remote_model import RemoteFacts, RemoteModel
from flexspec.runtime.distributed.staged_model import StagedModel
from flexspec.runtime.distributed.topology import Place, Topology
from flexspec.runtime.distributed.worker import Worker

_LEAST_TIMEOUT_S = 2
"""Several heartbeats."""
_UNDIVIDED = "replicated"
"""What plans call an operator that every rank of a stage runs whole."""
_ANSWER_S = 600.0
"""Within which a pass has to come back: on a slow machine a large one takes minutes, and hanging ranks are noticed by their heartbeats."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """This rank of a plan.

    Attributes:
        ranks: all of them.
        topology: who does what.
        place: what this one does.
        group: its tensor-parallel group; None if it has none.
        drivers: the process group of all replicas' drivers; None if there is a single replica, and for other ranks.
    """

    ranks: Ranks
    topology: Topology
    place: Place
    group: ParallelGroup | None
    drivers: Any

    @property
    def is_driver(self) -> bool:
        """Whether this rank schedules, drafts and decides for its replica."""
        return self.ranks.rank in self.topology.drivers

    def part(self) -> ModelPart:
        """What `lower` has to know of the part of the model that this rank runs; all ranks compile theirs at the same time."""
        assert self.place.stage is not None
        return ModelPart(plan=self.topology.plan, stage=self.place.stage, group=self.group, alone=self.everywhere())

    def driven_model(self, compilation: Compilation) -> CompiledModel:
        """The whole model as its driver uses it, given the driver's part of it."""
        topology, place, pp = self.topology, self.place, self.topology.plan.pp
        workers = topology.model_workers(place.replica)
        if not workers:
            return compilation.model
        return StagedModel(
            compilation.model,
            self.ranks,
            workers=workers,
            before=topology.stage(place.replica, pp - 2)[0] if pp > 1 else None,
            carried=_carried(compilation, pp - 1),
            order=_order(compilation),
        )

    def worker(self, compilation: Compilation) -> Worker:
        """This rank as one that its driver commands, given its part of the model, or its drafter."""
        topology, place = self.topology, self.place
        driver = topology.driver(place.replica)
        if place.stage is None:
            self.ranks.send(driver, RemoteFacts.of(compilation.model))
            return Worker(compilation.model, self.ranks, driver=driver, after=driver)
        is_last = place.stage == topology.plan.pp - 1
        return Worker(
            compilation.model,
            self.ranks,
            driver=driver,
            before=topology.stage(place.replica, place.stage - 1)[place.part] if place.stage else None,
            after=None if is_last else topology.stage(place.replica, place.stage + 1)[place.part],
            carried=_carried(compilation, place.stage),
        )

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Around what all ranks do to compile, each by itself: what goes wrong on one of them is raised by all, which go on together.

        Raises:
            UsageError: what a user has to mend; if not all ranks have found it, with the first that did.
            RankFailure: if a rank is gone, or has no memory left.
        """
        mine: UsageError | RankFailure | None = None
        try:
            with memory_told(self.ranks.rank):
                yield
        except (UsageError, RankFailure) as error:
            mine = error
        if self.ranks.rank == 0:
            others = range(1, self.ranks.size)
            outcome = _first_mistake([mine, *map(self._outcome, others)])
            self.ranks.send_all(others, outcome)
        else:
            self.ranks.send(0, mine)
            outcome = self.ranks.receive(0, owed=False)
        result(outcome)

    def _outcome(self, rank: int) -> Any:
        """What came of it on another rank."""
        try:
            return self.ranks.receive(rank, owed=False)
        except RankFailure as failure:
            return failure

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Around what only drivers do to compile: what a user has to mend is raised by all ranks, which serve until it is done.

        Raises:
            UsageError: what the first driver with a mistake has found.
        """
        outcome: Any = RankFailure(f"rank {self.ranks.rank} could not compile its part")
        try:
            with memory_told(self.ranks.rank):
                yield
            outcome = None
        except UsageError as error:
            outcome = error
        finally:
            if self.drivers is not None:
                outcomes = self.ranks.gather_objects(outcome, self.drivers)
                outcome = next((one for one in outcomes if one is not None), None)
            tell(self.ranks, self.topology.workers(self.place.replica), outcome)
        result(outcome)

    def remote_models(self) -> dict[str, RemoteModel]:
        """The drafters that have devices of their own, as the driver uses them; waits until they are compiled."""
        models: dict[str, RemoteModel] = {}
        for name in self.topology.own_devices:
            worker = self.topology.drafter(self.place.replica, name)
            facts = self.ranks.receive(worker, owed=False)
            assert isinstance(facts, RemoteFacts)
            models[name] = RemoteModel(facts, self.ranks, worker=worker)
        return models


def join(plan: ParallelPlan, *, device: torch.device, rank_timeout_s: float) -> Job | None:
    """Join the ranks of a plan that this process was started as one of; None if the plan is for one device.

    Args:
        plan: the same on all ranks.
        device: where this rank's part of the model runs.
        rank_timeout_s: seconds of silence after which a rank counts as hanging.

    Raises:
        UsageError: if another number of ranks was started than the plan is for, or it gives some of them nothing to do.
    """
    is_number = isinstance(rank_timeout_s, int | float) and not isinstance(rank_timeout_s, bool)
    if not (is_number and _LEAST_TIMEOUT_S <= rank_timeout_s < float("inf")):
        raise UsageError(f"rank_timeout_s={rank_timeout_s!r} is not allowed: give a number of seconds from {_LEAST_TIMEOUT_S} on")
    started = world_size()
    if started != plan.world_size:
        own = plan.replica_size - plan.pp * plan.tp
        drafters = f" + {own} for drafters" if own else ""
        raise UsageError(
            f"the strategy is for {plan.world_size} ranks (dp={plan.dp} x (pp={plan.pp} x tp={plan.tp}{drafters})), and {started} "
            f"{'was' if started == 1 else 'were'} started: start as many, torchrun --nproc-per-node {plan.world_size} -m flexspec …, "
            f"or give a strategy for {started}"
        )
    if plan.world_size == 1:
        return None
    if plan.tp > 1 and set().union(*plan.partition.values()) <= {_UNDIVIDED}:
        raise UsageError(
            f"tp={plan.tp} is not allowed with a partition that divides nothing ({dict(plan.partition)}): give one, such as "
            "`flexspec search --export-strategy FILE` writes, or tp=1"
        )
    ranks, heartbeat = _joined()
    heartbeat.timeout_s = rank_timeout_s
    if device.type == "cpu":
        ranks.share_memory()
    topology = Topology(plan)
    place = topology.place(ranks.rank)
    group: ParallelGroup | None = None
    # Every rank takes part in making every group.
    for replica in range(plan.dp):
        for stage in range(plan.pp if plan.tp > 1 else 0):
            made = ranks.tensor_group(topology.stage(replica, stage), device)
            if (replica, stage) == (place.replica, place.stage):
                group = made
    drivers = ranks.group(topology.drivers) if plan.dp > 1 else None
    is_driver = ranks.rank in topology.drivers
    return Job(ranks=ranks, topology=topology, place=place, group=group, drivers=drivers if is_driver else None)


@cache
def _joined() -> tuple[Ranks, Heartbeat]:
    """What all models of this process share."""
    ranks = Ranks(timeout_s=_ANSWER_S)
    heartbeat = Heartbeat(ranks, timeout_s=DEFAULT_RANK_TIMEOUT_S)

    def leave() -> None:
        ranks.close(timeout_s=heartbeat.timeout_s)
        heartbeat.stop()

    atexit.register(leave)
    return ranks, heartbeat


def _first_mistake(outcomes: Sequence[UsageError | RankFailure | None]) -> UsageError | RankFailure | None:
    """What all ranks raise, given what came of it on each: a user can mend mistakes, so they are told before failures."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, RankFailure)]
    rank = next((rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, UsageError)), None)
    if rank is None:
        return failures[0] if failures else None
    is_shared = len({str(outcome) for outcome in outcomes}) == 1
    return outcomes[rank] if is_shared else UsageError(f"on rank {rank}: {outcomes[rank]}")


def _carried(compilation: Compilation, stage: int) -> int:
    """Columns of hidden states that the stages before one give."""
    return sum(place.size for place in compilation.state_places if place.stage < stage)


def _order(compilation: Compilation) -> Sequence[int] | None:
    """For each column of the hidden states that were asked for, its place among those of all stages, one stage after the other."""
    starts: list[int] = []
    for number, place in enumerate(compilation.state_places):
        before = [
            other.size
            for at, other in enumerate(compilation.state_places)
            if other.stage < place.stage or (other.stage == place.stage and at < number)
        ]
        starts.append(sum(before))
    order = [start + column for start, place in zip(starts, compilation.state_places, strict=True) for column in range(place.size)]
    return None if order == sorted(order) else order
