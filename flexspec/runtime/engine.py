"""The step loop: draft, one LLM pass over all trees and prefill chunks, verify, commit, emit."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.adaptation.step_costs import measure_step_costs
from flexspec.runtime.batch_builder import BatchBuilder
from flexspec.runtime.cache_sizes import CacheSizes
from flexspec.runtime.decision import Decision, Outcome
from flexspec.runtime.detokenizer import Tokenizer
from flexspec.runtime.device_step import can_wait
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.engine_statistics import EngineStatistics, Tally
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.output import Chunk, GenerationInterrupted, Output, RequestMistake, StepRecord
from flexspec.runtime.periodic_log import PeriodicLog
from flexspec.runtime.request import Phase, Request, StopRules
from flexspec.runtime.request_check import check_single, check_sizes, find_mistake
from flexspec.runtime.request_factory import RequestFactory
from flexspec.runtime.scheduler import PrefillChunk, Scheduler
from flexspec.runtime.speculator import Speculator
from flexspec.runtime.started_step import Passes, StartedStep
from flexspec.runtime.state_feed import StateFeed
from flexspec.runtime.stats import PhaseClock, Profile
from flexspec.runtime.verifiers.legality import check_pair
from flexspec.tree_shape import PLAIN, Tree, TreeLimits


class Engine:
    """Serves requests with one LLM and, optionally, drafters.

    Args:
        model: the compiled LLM.
        drafters: propose trees, which are merged; none decodes plainly. Their names differ.
        verifier_name: as `make_verifier` takes it.
        tree: the widths drafters fill, or the limits of adaptive trees; no widths decode plainly.
        acceptance: what is known of the drafters' acceptance; it goes on learning. None for nothing.
        max_batch: most requests that run at once; more queue.
        max_len: most tokens of a request, prompt and new tokens together.
        pass_tokens: most tokens of one LLM pass; None for what the model takes.
        block_size: slots of a block of the KV cache; None for blocks that each hold a whole request.
        num_blocks: blocks of the KV cache; None for as many as `max_batch` of the longest requests take. With fewer, requests that
            do not fit are preempted, and later compute anew what they lost: their text stays the same.
        micro_batches: steps that may be under way at once, each of its share of the requests; more than one keep the stages of a
            pipeline busy.
        eos_token_ids: tokens that end a text.
        vocab_limit: token ids from here on are padding and are never emitted; None for none.
        tokenizer: decodes new tokens; None leaves texts empty.
        observer: called with every request's part of every step that emitted tokens.
        log_every_s: seconds of steps after which the logger `flexspec` is told, at level INFO, how they went; None for never.

    Attributes:
        acceptance: what is known of the drafters' acceptance by now.

    Raises:
        UsageError: if the sizes do not fit the model or each other, the cache is too small for one request of `max_len`, the
            verifier does not allow the tree, or `log_every_s` is no positive number.
    """

    def __init__(
        self,
        model: CompiledModel,
        *,
        drafters: Sequence[Drafter] = (),
        verifier_name: str = "auto",
        tree: Tree = PLAIN,
        acceptance: AcceptanceTable | None = None,
        max_batch: int = 8,
        max_len: int = 4096,
        pass_tokens: int | None = None,
        block_size: int | None = None,
        num_blocks: int | None = None,
        micro_batches: int = 1,
        eos_token_ids: Sequence[int] = (),
        vocab_limit: int | None = None,
        tokenizer: Tokenizer | None = None,
        observer: Callable[[StepRecord], None] | None = None,
        log_every_s: float | None = 10.0,
    ) -> None:
        pass_tokens = model.max_pass_tokens if pass_tokens is None else pass_tokens
        check_pair(verifier_name, tree)
        check_sizes(model, max_batch=max_batch, max_len=max_len, pass_tokens=pass_tokens)
        self.model = model
        self.max_len = max_len
        self.observer = observer
        self.acceptance = AcceptanceTable() if acceptance is None else acceptance
        self._factory = RequestFactory(
            verifier_name=verifier_name,
            stop_rules=StopRules(eos_token_ids=frozenset(eos_token_ids), max_len=max_len),
            vocab_size=model.vocab_size,
            vocab_limit=model.vocab_size if vocab_limit is None else vocab_limit,
            tokenizer=tokenizer,
        )
        sizes = CacheSizes.of(
            tree, max_batch=max_batch, max_len=max_len, pass_tokens=pass_tokens, block_size=block_size, num_blocks=num_blocks
        )
        max_nodes = sizes.max_nodes
        self._cache = sizes.make_cache(model.kv_shape)
        self._scheduler = Scheduler(
            self._cache,
            max_batch=max_batch,
            pass_tokens=pass_tokens,
            tail_slots=1 + sizes.tree_nodes,
            max_tail_slots=1 + max_nodes,
            micro_batches=micro_batches,
        )
        self._passes = Passes(model)
        self._micro_batches = micro_batches
        self._under_way: deque[StartedStep] = deque()
        self._adaptation: Adaptation | None = None
        if drafters and isinstance(tree, TreeLimits):
            costs = measure_step_costs(model, most=min(max_batch * (1 + max_nodes), pass_tokens))
            self._adaptation = Adaptation(drafters, costs=costs, acceptance=self.acceptance)
        self._speculator = Speculator(drafters, tree, max_nodes=max_nodes, acceptance=self.acceptance, adaptation=self._adaptation)
        self._states = StateFeed(model, self._cache, self._speculator.state_readers)
        self._builder = BatchBuilder(self._cache, pass_tokens=pass_tokens)
        self._requests: dict[int, Request] = {}
        self._clock = PhaseClock()
        self._tally = Tally()
        self._log = PeriodicLog(log_every_s, self.statistics)
        # Threads may call in together: a step belongs to one of them, and its outputs to whoever asked.
        self._lock = threading.RLock()

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return self._scheduler.has_work

    @property
    def cache(self) -> KVCache:
        """The LLM's cache."""
        return self._cache

    def statistics(self) -> EngineStatistics:
        """What was done so far."""
        with self._lock:
            return self._tally.statistics(
                requests=list(self._requests.values()),
                num_running=len(self._scheduler.running),
                preemptions=self._scheduler.num_preemptions,
                profile=self._clock.lifetime(),
                cache=self._cache,
                adaptation=self._adaptation,
            )

    def profile(self) -> Profile:
        """Where the time of all steps since the last `reset_profile` went."""
        return self._clock.profile()

    def reset_profile(self) -> None:
        """Begin the profile anew."""
        self._clock.reset()

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Queue a prompt and return the id under which `step` reports it; do not mix this with `generate` and `stream`, which step too.

        Raises:
            UsageError: if the prompt is empty, too long or not of this vocabulary, the parameters do not fit the model, or more
                than one completion is asked for.
        """
        check_single(params, "add")
        self._factory.check(prompt, params)
        return self._submit(prompt, params, live=True)[0].request_id

    def abort(self, request_id: int) -> Output | None:
        """End a request now, free what it holds, and return what was produced; None if it has ended already."""
        with self._lock:
            return self._abort(request_id)

    def _abort(self, request_id: int) -> Output | None:
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.output is None:
            request.end("abort")
        self._retire(request)
        if not self.has_work:
            for step in self._under_way:
                self._scheduler.end(step.requests)
            self._under_way.clear()
            self._passes.drain()
        return request.output

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]) -> list[Output]:
        """Complete every prompt, and return the outputs in the order of the prompts, the `n` completions of a prompt in a row.

        Args:
            prompts: token ids.
            params: for all of them, or one each.

        Raises:
            UsageError: as `add` does; then none of the prompts has been started.
            RequestMistake: a UsageError, if a logits processor or grammar does not do what it should, or all tokens are banned;
                with the outputs of all requests.
            GenerationInterrupted: on Ctrl-C, with what was produced.
        """
        each = self.check(prompts, params)
        requests: list[Request] = []
        interrupted = False
        try:
            for prompt, its_params in zip(prompts, each, strict=True):
                requests += self._submit(prompt, its_params, live=False)
            while any(request.output is None for request in requests) and find_mistake(requests) is None:
                self.step()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for request in requests:
                self.abort(request.request_id)
        outputs = [request.output for request in requests if request.output is not None]
        if interrupted:
            raise GenerationInterrupted(outputs)
        if (mistake := find_mistake(requests)) is not None:
            raise RequestMistake(mistake, outputs) from mistake
        return outputs

    def check(self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]) -> list[SamplingParams]:
        """Refuse what `generate` would refuse before it starts anything, and return the parameters of each prompt.

        Raises:
            UsageError: as `add` does.
        """
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise UsageError(f"{len(each)} sampling parameters for {len(prompts)} prompts: give one for all, or one each")
        for prompt, its_params in zip(prompts, each, strict=True):
            self._factory.check(prompt, its_params)
        return each

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        """Complete one prompt chunk by chunk; the last chunk carries the output. Closing the iterator ends the request.

        Raises:
            UsageError: as `add` does, at once.
            GenerationInterrupted: on Ctrl-C during a step, with what was produced.
        """
        check_single(params, "stream")
        self._factory.check(prompt, params)
        return self._chunks(prompt, params)

    def step(self) -> list[Chunk]:
        """Advance every running request by one LLM pass, and return what was emitted."""
        with self._lock:
            return self._step() if self.has_work else []

    def _step(self) -> list[Chunk]:
        """Begin as many steps as may be under way, and end the first of them."""
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
            self._speculator.release(request.request_id)
        self._scheduler.admit()
        decoding = self._scheduler.decoding()
        if self._under_way and not decoding and not self._scheduler.prefill_tokens():
            return None
        tree_tokens, rooms = self._scheduler.tree_tokens(), self._scheduler.tree_rooms()
        device = self._cache.storage.keys.device if can_wait(self._scheduler.running, self.model) else None
        clock.lap("schedule")
        drafts = self._speculator.draft(
            decoding, tree_tokens=tree_tokens, other_tokens=self._scheduler.prefill_tokens(), rooms=rooms, device=device
        )
        draft_s = clock.lap("draft") / 1e9
        trees = list(zip(decoding, drafts.trees, strict=True))
        chunks = self._scheduler.prefill_chunks(sum(len(tree.tokens) for tree in drafts.trees))
        clock.lap("schedule")
        batch = self._builder.build(trees, chunks, drafts.rows)
        clock.lap("build")
        under_way = self._passes.start(batch, self._cache.storage)
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
        outcome = step.drafts.decide(step.trees, step.chunks, logits, self.model.tree_walker)
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
        self._log.step(clock.lapped)
        return emitted

    def _apply(self, outcome: Outcome, chunks: Sequence[PrefillChunk]) -> list[Chunk]:
        """Commit and emit what a pass decided. A step torn here, by Ctrl-C for example, ends the requests that run."""
        done = False
        # Whoever aborted a request while its pass was under way has its output.
        decisions = [one for one in outcome.decisions if self._is_live(one.request)]
        try:
            for chunk, entries in zip(chunks, outcome.prompt_logprobs, strict=True):
                if not self._is_live(chunk.request):
                    continue
                chunk.request.add_prompt_logprobs(entries)
                self._states.commit(chunk.request.request_id, range(chunk.count))
                chunk.request.computed(chunk.count)
            self._clock.lap("commit")
            emitted = [self._emit(one) if isinstance(one, Decision) else one.request.end("error", one.error) for one in decisions]
            self._states.deliver()
            self._cache.apply_moves()
            for decision in decisions:
                if decision.request.output is not None:
                    self._retire(decision.request)
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
        self._speculator.observe(request.request_id, decision.token_ids)
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

    def _is_live(self, request: Request) -> bool:
        return request.request_id in self._requests

    def _retire(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._scheduler.remove(request)
        self._tally.retire(request)
        self._speculator.release(request.request_id)

    def _chunks(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        (request,) = self._submit(prompt, params, live=True, keep_chunks=True)
        try:
            while request.chunks or request.output is None:
                if request.chunks:
                    yield request.chunks.popleft()
                else:
                    self.step()
            if (mistake := find_mistake([request])) is not None:
                raise mistake
        except KeyboardInterrupt:
            self.abort(request.request_id)
            raise GenerationInterrupted([output for output in (request.output,) if output is not None]) from None
        finally:
            self.abort(request.request_id)

    def _submit(self, prompt: Sequence[int], params: SamplingParams, *, live: bool, keep_chunks: bool = False) -> list[Request]:
        with self._lock:
            requests = self._factory.make(prompt, params, live=live, keep_chunks=keep_chunks)
            for request in requests:
                self._requests[request.request_id] = request
                self._scheduler.add(request)
        return requests
