"""What an engine did, over all its requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Request
from flexspec.runtime.stats import Profile, RequestStats


@dataclass(frozen=True, kw_only=True)
class DrafterState:
    """What adaptive trees think of a drafter.

    Attributes:
        share_on: of the kinds of steps that there were, by what cheaper drafters promise in them, in which it is always asked; in
            the others it is only tried now and then.
        proposal_s: seconds that one of its proposals takes, for all requests of a step together; 0 before the first.
    """

    share_on: float
    proposal_s: float


@dataclass(frozen=True, kw_only=True)
class AdaptationStatistics:
    """What adaptive trees go by.

    Attributes:
        tokens_per_s: λ, the tokens a second of the last steps, which is the price of time.
        pass_s: seconds of an LLM pass by its number of tokens, for the sizes that are measured.
        drafters: by name.
    """

    tokens_per_s: float
    pass_s: Mapping[int, float]
    drafters: Mapping[str, DrafterState]

    @classmethod
    def of(cls, adaptation: Adaptation) -> "AdaptationStatistics":
        """What `adaptation` goes by now."""
        drafters = {name: DrafterState(share_on=switch.share_on, proposal_s=switch.seconds) for name, switch in adaptation.switches.items()}
        return cls(
            tokens_per_s=adaptation.tokens_per_s,
            pass_s=MappingProxyType(adaptation.costs.table()),
            drafters=MappingProxyType(drafters),
        )


@dataclass(frozen=True, kw_only=True)
class EngineStatistics:
    """What an engine did so far; requests that run count with what they have emitted.

    Attributes:
        finished: requests that came to their end.
        aborted: requests that were ended before it.
        failed: requests that ended with an error.
        running: requests that run now.
        waiting: requests that are queued now.
        preemptions: how often a request lost its slots to others for want of blocks, and computed them anew later.
        new_tokens: tokens emitted.
        request_steps: LLM passes that emitted tokens, counted for each request of a pass.
        drafted: tokens drafted and verified.
        accepted: drafted tokens that were emitted.
        acceptance: the same by depth, rank and drafter.
        profile: where the time of all steps went, whatever `Engine.reset_profile` did.
        kv_tokens: tokens in the LLM's KV cache.
        kv_capacity: tokens it has room for.
        kv_blocks_used: blocks of it that requests hold.
        kv_blocks: blocks that it has.
        adaptation: what adaptive trees go by; None for static ones.
    """

    finished: int
    aborted: int
    failed: int
    running: int
    waiting: int
    preemptions: int
    new_tokens: int
    request_steps: int
    drafted: int
    accepted: int
    acceptance: DraftCounts
    profile: Profile
    kv_tokens: int
    kv_capacity: int
    kv_blocks_used: int
    kv_blocks: int
    adaptation: AdaptationStatistics | None

    @property
    def tokens_per_step(self) -> float:
        """Tokens emitted for a request by an LLM pass, bonus tokens included; 0 before the first."""
        return self.new_tokens / self.request_steps if self.request_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were emitted, from 0 to 1; 0 if none were drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Tally:
    """Adds up the statistics of requests that are over."""

    def __init__(self) -> None:
        self.finished = 0
        self.aborted = 0
        self.failed = 0
        self._sums = RequestStats()

    def retire(self, request: Request) -> None:
        """A request is over."""
        assert request.output is not None
        if request.output.finish_reason == "abort":
            self.aborted += 1
        elif request.output.finish_reason == "error":
            self.failed += 1
        else:
            self.finished += 1
        _add(self._sums, request.stats)

    def statistics(
        self,
        *,
        requests: Sequence[Request],
        num_running: int,
        preemptions: int,
        profile: Profile,
        cache: KVCache,
        adaptation: Adaptation | None,
    ) -> EngineStatistics:
        """Those of the requests that are over and of `requests`, which go on.

        Args:
            requests: running and waiting.
            num_running: how many of them run.
            preemptions: how often one was preempted.
            profile: where the time went.
            cache: the LLM's.
            adaptation: None for static trees.
        """
        sums = RequestStats()
        for stats in (self._sums, *(request.stats for request in requests)):
            _add(sums, stats)
        return EngineStatistics(
            finished=self.finished,
            aborted=self.aborted,
            failed=self.failed,
            running=num_running,
            waiting=len(requests) - num_running,
            preemptions=preemptions,
            new_tokens=sums.new_tokens,
            request_steps=sums.steps,
            drafted=sums.drafted,
            accepted=sums.accepted,
            acceptance=sums.acceptance,
            profile=profile,
            kv_tokens=sum(cache.length(request_id) for request_id in cache.request_ids),
            kv_capacity=cache.storage.num_blocks * cache.storage.block_size,
            kv_blocks_used=cache.storage.num_blocks - cache.num_free_blocks,
            kv_blocks=cache.storage.num_blocks,
            adaptation=None if adaptation is None else AdaptationStatistics.of(adaptation),
        )


def _add(sums: RequestStats, stats: RequestStats) -> None:
    sums.new_tokens += stats.new_tokens
    sums.steps += stats.steps
    sums.drafted += stats.drafted
    sums.accepted += stats.accepted
    sums.acceptance.add(stats.acceptance)
