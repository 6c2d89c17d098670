"""What users call on every rank alike: drivers work through their shares of the requests, the others follow, all return the same."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from flexspec.acceptance import AcceptanceTable
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.distributed.interrupts import interrupts_later
from flexspec.runtime.distributed.outcomes import result, tell
from flexspec.runtime.distributed.rank_failure import RankFailure, memory_told
from flexspec.runtime.distributed.ranks import Ranks
from flexspec.runtime.distributed.topology import Topology
from flexspec.runtime.distributed.worker import Worker
from flexspec.runtime.engine import Engine
from flexspec.runtime.engine_statistics import EngineStatistics
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.output import Chunk, GenerationInterrupted, Output, RequestMistake
from flexspec.runtime.request_check import check_single
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
            outputs: list[Output] = result(self._worker.serve())
            return outputs
        outcome: Any = self._failure()
        try:
            with memory_told(self._ranks.rank):
                outcome = self._shared(prompts, params)
        except RankFailure as failure:
            outcome = failure
        finally:
            self._tell(outcome)
        outputs = result(outcome)
        return outputs

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        """As `Engine.stream`, on the first rank; every rank has to go through it, and the others see the last chunk only."""
        if self._worker is not None:
            result(self._worker.serve())
        else:
            outcome: Any = self._failure()
            try:
                outcome = self._refusal(prompt, params)
            finally:
                self._tell(outcome)
            result(outcome)
        return self._stream(prompt, params)

    def _stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        """A stream that every driver has found possible."""
        if self._worker is not None:
            yield from result(self._worker.serve())
            return
        last: list[Chunk] = []
        outcome: Any = self._failure()
        try:
            if self._place.replica == 0:
                with memory_told(self._ranks.rank), closing(self.engine.stream(prompt, params)) as chunks:
                    for chunk in chunks:
                        last = [chunk]
                        yield chunk
            outcome = last
        except GeneratorExit:
            outcome = last
            raise
        except (UsageError, GenerationInterrupted, RankFailure) as error:
            outcome = error
        finally:
            outcome = self._gathered(outcome)[0]
            self._tell(outcome)
        if self._place.replica or isinstance(outcome, BaseException):
            yield from result(outcome)

    def close(self) -> None:
        """Wait until all ranks have come to their end, so that one that hangs there is noticed while others still live."""
        self._ranks.meet()

    def _shared(self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]) -> Any:
        """What the call comes to: the outputs of all replicas, or an exception."""
        replicas = self._topology.plan.dp
        mine = slice(self._place.replica, None, replicas)
        try:
            each = self.engine.check(prompts, params)
        except UsageError as error:
            return error  # every driver has found it, and none has started anything
        own: Any
        try:
            own = self.engine.generate(prompts[mine], each[mine])
        except (UsageError, GenerationInterrupted) as error:
            own = error
        if self._drivers is None:
            return own
        outcomes = self._gathered(own)
        failed = next((one for one in outcomes if isinstance(one, UsageError) and not isinstance(one, RequestMistake)), None)
        if failed is not None:
            return failed
        queues = [iter(one.outputs if isinstance(one, RequestMistake | GenerationInterrupted) else one) for one in outcomes]
        places = [place % replicas for place, its in enumerate(each) for _ in range(its.n)]
        # What was interrupted early has fewer outputs.
        outputs = [output for output in (next(queues[replica], None) for replica in places) if output is not None]
        if any(isinstance(one, GenerationInterrupted) for one in outcomes):
            return GenerationInterrupted(outputs)
        mistake = next((one for one in outcomes if isinstance(one, RequestMistake)), None)
        return outputs if mistake is None else RequestMistake(mistake, outputs)

    def _refusal(self, prompt: Sequence[int], params: SamplingParams) -> UsageError | None:
        """What `Engine.stream` would refuse at once, if it would; all drivers find the same."""
        try:
            check_single(params, "stream")
            self.engine.check([prompt], params)
        except UsageError as error:
            return error
        return None

    def _gathered(self, own: Any) -> list[Any]:
        """What every driver has."""
        return [own] if self._drivers is None else self._ranks.gather_objects(own, self._drivers)

    def _failure(self) -> RankFailure:
        """What the others hear if this rank can't go on."""
        return RankFailure(f"rank {self._ranks.rank} could not go on")

    def _tell(self, outcome: Any) -> None:
        with interrupts_later():
            tell(self._ranks, self._topology.workers(self._place.replica), outcome)
