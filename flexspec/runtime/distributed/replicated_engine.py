"""What users call on every rank alike: drivers work through their shares of the requests, the others follow, all return the same."""

from collections.abc import Iterator, Sequence
from typing import Any

from flexspec.acceptance import AcceptanceTable
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.distributed.commands import Finish
from flexspec.runtime.distributed.ranks import Ranks
from flexspec.runtime.distributed.topology import Topology
from flexspec.runtime.distributed.worker import Worker
from flexspec.runtime.engine import Engine
from flexspec.runtime.engine_statistics import EngineStatistics
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.output import Chunk, Output
from flexspec.runtime.stats import Profile


class ReplicatedEngine:
    """The engines of all replicas as one. Prompt i of a call is replica i mod dp's.

    Args:
        ranks: the job.
        topology: who does what in it.
        engine: this rank's, if it is a driver.
        worker: this rank, if it isn't.
        drivers: the process group of the drivers; None if there is a single one.
    """

    def __init__(self, ranks: Ranks, topology: Topology, *, engine: Engine | None, worker: Worker | None, drivers: Any) -> None:
        assert (engine is None) != (worker is None)
        self._ranks = ranks
        self._topology = topology
        self._engine = engine
        self._worker = worker
        self._drivers = drivers
        self._place = topology.place(ranks.rank)

    @property
    def engine(self) -> Engine:
        """This rank's own engine.

        Raises:
            UsageError: if it has none.
        """
        if self._engine is None:
            raise UsageError(f"rank {self._ranks.rank} has no engine: ask rank {self._topology.driver(self._place.replica)}, which has one")
        return self._engine

    @property
    def cache(self) -> KVCache:
        """As `Engine.cache`, of this rank's engine."""
        return self.engine.cache

    @property
    def acceptance(self) -> AcceptanceTable:
        """As `Engine.acceptance`, of this rank's engine."""
        return self.engine.acceptance

    def statistics(self) -> EngineStatistics:
        """As `Engine.statistics`, of this rank's engine."""
        return self.engine.statistics()

    def profile(self) -> Profile:
        """As `Engine.profile`, of this rank's engine."""
        return self.engine.profile()

    def reset_profile(self) -> None:
        """As `Engine.reset_profile`, of this rank's engine."""
        self.engine.reset_profile()

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]) -> list[Output]:
        """As `Engine.generate`; every rank has to call it with the same prompts, and all return all outputs."""
        if self._worker is not None:
            outputs: list[Output] = _result(self._worker.serve())
            return outputs
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            outcome: Any = UsageError(f"{len(each)} sampling parameters for {len(prompts)} prompts: give one for all, or one each")
        else:
            outcome = self._shared(prompts, each)
        self._tell(outcome)
        outputs = _result(outcome)
        return outputs

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        """As `Engine.stream`, on the first rank; every rank has to go through it, and the others see the last chunk only."""
        if self._worker is not None:
            yield from _result(self._worker.serve())
            return
        chunks: list[Chunk] = []
        outcome: Any = chunks
        try:
            if self._place.replica == 0:
                for chunk in self.engine.stream(prompt, params):
                    chunks[:] = [chunk]
                    yield chunk
        except (UsageError, RuntimeError) as error:
            outcome = error
        finally:
            if self._drivers is not None:
                outcome = self._ranks.gather_objects(outcome, self._drivers)[0]
            self._tell(outcome)
        if self._place.replica or isinstance(outcome, Exception):
            yield from _result(outcome)

    def close(self) -> None:
        """Wait until all ranks have come to their end, so that one that hangs there is noticed while others still live."""
        self._ranks.meet()

    def _shared(self, prompts: Sequence[Sequence[int]], each: Sequence[SamplingParams]) -> Any:
        replicas = self._topology.plan.dp
        mine = slice(self._place.replica, None, replicas)
        outcome: Any
        try:
            outcome = self.engine.generate(prompts[mine], each[mine])
        except UsageError as error:
            outcome = error
        if self._drivers is None:
            return outcome
        outcomes = self._ranks.gather_objects(outcome, self._drivers)
        failed = [one for one in outcomes if isinstance(one, Exception)]
        if failed:
            return failed[0]
        queues = [iter(one) for one in outcomes]
        return [next(queues[place % replicas]) for place, its in enumerate(each) for _ in range(its.n)]

    def _tell(self, outcome: Any) -> None:
        for worker in self._topology.workers(self._place.replica):
            self._ranks.send(worker, Finish(outcome))


def _result(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
