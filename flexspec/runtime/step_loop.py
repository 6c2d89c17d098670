"""The step loop: draft, one LLM pass over all trees and prefill chunks, verify, commit, emit."""

from collections import deque
from collections.abc import Callable, Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.adaptation.step_costs import measure_step_costs
from flexspec.runtime.batch_builder import BatchBuilder
from flexspec.runtime.cache_sizes import CacheSizes
from flexspec.runtime.decision import Decision, Outcome
from flexspec.runtime.device_step import can_wait
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.engine_statistics import EngineStatistics
from flexspec.runtime.live_requests import LiveRequests
from flexspec.runtime.output import Chunk, Output, StepRecord
from flexspec.runtime.request import Phase, Request
from flexspec.runtime.scheduler import PrefillChunk, Scheduler
from flexspec.runtime.speculator import Speculator
from flexspec.runtime.started_step import Passes, StartedStep
from flexspec.runtime.state_feed import StateFeed
from flexspec.runtime.stats import PhaseClock, Profile
from flexspec.tree_shape import Tree, TreeLimits


class StepLoop:
    """Takes requests step by step to their ends.

    Args:
        model: the compiled LLM.
        drafters: propose trees; none decodes plainly.
        tree: what they fill.
        acceptance: what is known of the drafters; it goes on learning.
        sizes: of the cache.
        max_batch: most requests that run at once.
        pass_tokens: most tokens of one LLM pass.
        micro_batches: steps that may be under way at once.
        observer: called with every request's part of every step that emitted tokens.

    Attributes:
        cache: the LLM's.
        speculator: asks the drafters.
        observer: as above.
    """

    def __init__(
        self,
        model: CompiledModel,
        *,
        drafters: Sequence[Drafter],
        tree: Tree,
        acceptance: AcceptanceTable,
        sizes: CacheSizes,
        max_batch: int,
        pass_tokens: int,
        micro_batches: int,
        observer: Callable[[StepRecord], None] | None,
    ) -> None:
        max_nodes = sizes.max_nodes
        self._model = model
        self.observer = observer
        self.cache = sizes.make_cache(model.kv_shape)
        self._scheduler = Scheduler(
            self.cache,
            max_batch=max_batch,
            pass_tokens=pass_tokens,
            tail_slots=1 + sizes.tree_nodes,
            max_tail_slots=1 + max_nodes,
            micro_batches=micro_batches,
        )
        self._passes = Passes(model)
        self._micro_batches = micro_batches
        self._under_way: deque[StartedStep] = deque()  # whose passes have begun, in the order in which they end
        self._adaptation: Adaptation | None = None
        if drafters and isinstance(tree, TreeLimits):
            costs = measure_step_costs(model, most=min(max_batch * (1 + max_nodes), pass_tokens))
            self._adaptation = Adaptation(drafters, costs=costs, acceptance=acceptance)
        self.speculator = Speculator(drafters, tree, max_nodes=max_nodes, acceptance=acceptance, adaptation=self._adaptation)
        self._requests = LiveRequests(self._scheduler, self.speculator)
        self._states = StateFeed(model, self.cache, self.speculator.state_readers)
        self._builder = BatchBuilder(self.cache, pass_tokens=pass_tokens)
        self._clock = PhaseClock()

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return self._scheduler.has_work

    @property
    def lapped_ns(self) -> int:
        """Nanoseconds that the last step took."""
        return self._clock.lapped

    def profile(self) -> Profile:
        """Where the time of all steps since the last `reset_profile` went."""
        return self._clock.profile()

    def reset_profile(self) -> None:
        """Begin the profile anew."""
        self._clock.reset()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._requests.add(request)

    def statistics(self) -> EngineStatistics:
        """What was done so far."""
        return self._requests.statistics(profile=self._clock.lifetime(), cache=self.cache, adaptation=self._adaptation)

    def abort(self, request_id: int) -> Output | None:
        """End a request now, free what it holds, and return what was produced; None if it has ended already."""
        if request_id not in self._requests:
            return None
        output = self._requests.abort(request_id)
        if not self._scheduler.has_work:
            for step in self._under_way:
                self._scheduler.end(step.requests)
            self._under_way.clear()
            self._passes.drain()
        return output

    def step(self) -> list[Chunk]:
        """Begin as many steps as may be under way, and end the first of them; there must be work."""
        self._clock.start()
        while len(self._under_way) < self._micro_batches and (started := self._begin()) is not None:
            self._under_way.append(started)
        return self._end(self._under_way.popleft())

    def _begin(self) -> StartedStep | None:
        """Draft for the requests that are in no other step, and start a pass over their trees; None if there are none."""
        clock = self._clock
        preempted = self._scheduler.make_room()
        if preempted is None:
            return None
        for request in preempted:
            self.speculator.release(request.request_id)
        self._scheduler.admit()
        decoding = self._scheduler.decoding()
        if self._under_way and not decoding and not self._scheduler.prefill_tokens():
            return None
        tree_tokens, rooms = self._scheduler.tree_tokens(), self._scheduler.tree_rooms()
        device = self.cache.storage.keys.device if can_wait(self._scheduler.running, self._model) else None
        clock.lap("schedule")
        drafts = self.speculator.draft(
            decoding, tree_tokens=tree_tokens, other_tokens=self._scheduler.prefill_tokens(), rooms=rooms, device=device
        )
        draft_s = clock.lap("draft") / 1e9
        trees = list(zip(decoding, drafts.trees, strict=True))
        chunks = self._scheduler.prefill_chunks(sum(len(tree.tokens) for tree in drafts.trees))
        clock.lap("schedule")
        batch = self._builder.build(trees, chunks, drafts.rows)
        clock.lap("build")
        under_way = self._passes.start(batch, self.cache.storage)
        started = StartedStep(
            drafts=drafts,
            trees=trees,
            chunks=chunks,
            num_tokens=batch.num_tokens,
            under_way=under_way,
            draft_s=draft_s,
            forward_s=clock.lap("forward") / 1e9,
        )
        self._scheduler.begin(started.requests)
        return started

    def _end(self, step: StartedStep) -> list[Chunk]:
        """Decide on a step's trees, commit and emit."""
        clock = self._clock
        logits = self._passes.finish(step.under_way)
        forward_s = step.forward_s + clock.lap("forward") / 1e9
        self._scheduler.end(step.requests)
        self._states.begin(step.trees, step.chunks)
        outcome = step.drafts.decide(step.trees, step.chunks, logits, self._model.tree_walker)
        draft_s, forward_s = step.drafts.seconds(step.draft_s, forward_s + outcome.wait_s)
        clock.lap("verify")
        clock.move(outcome.wait_s, "verify", "forward")
        for request, _ in step.trees:
            request.stats.draft_s += draft_s
            request.stats.forward_s += forward_s
        emitted = self._apply(outcome, step.chunks)
        if self._adaptation is not None:
            self._adaptation.end_step(
                pass_tokens=step.num_tokens,
                emitted=sum(len(chunk.token_ids) for chunk in emitted),
                forward_s=forward_s,
                step_s=clock.elapsed() / 1e9,
                has_prompts=bool(step.chunks),
            )
        return emitted

    def _apply(self, outcome: Outcome, chunks: Sequence[PrefillChunk]) -> list[Chunk]:
        """Commit and emit what a pass decided. A step torn here, by Ctrl-C for example, ends the requests that run."""
        done = False
        # Whoever aborted a request while its pass was under way has its output.
        decisions = [one for one in outcome.decisions if one.request.request_id in self._requests]
        try:
            for chunk, entries in zip(chunks, outcome.prompt_logprobs, strict=True):
                if chunk.request.request_id not in self._requests:
                    continue
                chunk.request.add_prompt_logprobs(entries)
                self._states.commit(chunk.request.request_id, range(chunk.count))
                chunk.request.computed(chunk.count)
            self._clock.lap("commit")
            emitted = [self._emit(one) if isinstance(one, Decision) else one.request.end("error", one.error) for one in decisions]
            self._states.deliver()
            self.cache.apply_moves()
            for decision in decisions:
                if decision.request.output is not None:
                    self._requests.retire(decision.request)
            self._clock.lap("commit")
            done = True
        finally:
            if not done:
                for request in list(self._scheduler.running):
                    self.abort(request.request_id)
        return emitted

    def _emit(self, decision: Decision) -> Chunk:
        """Append what was decided to a request, up to where it ends; the cache keeps all of the text but its last token."""
        request, tree, verdict = decision.request, decision.tree, decision.verdict
        is_first = request.phase is Phase.PREFILL
        self.speculator.observe(request.request_id, decision.token_ids)
        kept, text, reason = request.emit(decision.token_ids, decision.logprobs)
        num_accepted = request.count_drafts(tree, verdict.path, num_kept=len(kept), verify_s=decision.verify_s)
        self._clock.lap("emit")
        if not is_first:
            self._states.commit(request.request_id, verdict.path[: len(kept)])
        self._clock.lap("commit")
        if reason is not None:
            text += request.finish(reason)
        logprobs = None if decision.logprobs is None else decision.logprobs[: len(kept)]
        chunk = request.report(kept, text, num_accepted=num_accepted, logprobs=logprobs)
        if self.observer is not None:
            path = verdict.path[: num_accepted + 1]
            self.observer(StepRecord(request_id=request.request_id, tree=tree, path=path, token_ids=kept))
        self._clock.lap("emit")
        return chunk
