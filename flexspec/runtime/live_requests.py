"""The requests of an engine that are not over yet, and the count of those that are."""

from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.engine_statistics import EngineStatistics, Tally
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.output import Output
from flexspec.runtime.request import Request
from flexspec.runtime.scheduler import Scheduler
from flexspec.runtime.speculator import Speculator
from flexspec.runtime.stats import Profile


class LiveRequests:
    """Running and waiting requests by their ids.

    Args:
        scheduler: runs them.
        speculator: knows of their drafts.
    """

    def __init__(self, scheduler: Scheduler, speculator: Speculator) -> None:
        self._scheduler = scheduler
        self._speculator = speculator
        self._requests: dict[int, Request] = {}
        self._tally = Tally()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._requests[request.request_id] = request
        self._scheduler.add(request)

    def abort(self, request_id: int) -> Output | None:
        """End a request, and return what was produced."""
        request = self._requests[request_id]
        if request.output is None:
            request.end("abort")
        self.retire(request)
        return request.output

    def retire(self, request: Request) -> None:
        """A request is over: free what it holds, and count it."""
        del self._requests[request.request_id]
        self._scheduler.remove(request)
        self._tally.retire(request)
        self._speculator.release(request.request_id)

    def statistics(self, *, profile: Profile, cache: KVCache, adaptation: Adaptation | None) -> EngineStatistics:
        """Of all requests that there were; the arguments are those of `Tally.statistics`."""
        return self._tally.statistics(
            requests=list(self._requests.values()),
            num_running=len(self._scheduler.running),
            preemptions=self._scheduler.num_preemptions,
            profile=profile,
            cache=cache,
            adaptation=adaptation,
        )
