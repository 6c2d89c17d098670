"""What callers ask of one LLM and its drafters: requests in, outputs and streams out, from any thread."""

import threading
from collections.abc import Callable, Generator, Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.cache_sizes import CacheSizes
from flexspec.runtime.detokenizer import Tokenizer
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.engine_statistics import EngineStatistics
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.output import Chunk, GenerationInterrupted, Output, RequestMistake, StepRecord
from flexspec.runtime.periodic_log import PeriodicLog
from flexspec.runtime.request import Request, StopRules
from flexspec.runtime.request_check import check_single, check_sizes, find_mistake
from flexspec.runtime.request_factory import RequestFactory
from flexspec.runtime.stats import Profile
from flexspec.runtime.step_loop import StepLoop
from flexspec.runtime.verifiers.legality import check_pair
from flexspec.tree_shape import PLAIN, Tree


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
        self._loop = StepLoop(
            model,
            drafters=drafters,
            tree=tree,
            acceptance=self.acceptance,
            sizes=sizes,
            max_batch=max_batch,
            pass_tokens=pass_tokens,
            micro_batches=micro_batches,
            observer=observer,
        )
        self._log = PeriodicLog(log_every_s, self.statistics)
        # Threads may call in together: a step belongs to one of them, and its outputs to whoever asked.
        self._lock = threading.RLock()

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return self._loop.has_work

    @property
    def cache(self) -> KVCache:
        """The LLM's cache."""
        return self._loop.cache

    @property
    def observer(self) -> Callable[[StepRecord], None] | None:
        """Called with every request's part of every step that emitted tokens."""
        return self._loop.observer

    @observer.setter
    def observer(self, observer: Callable[[StepRecord], None] | None) -> None:
        self._loop.observer = observer

    def statistics(self) -> EngineStatistics:
        """What was done so far."""
        with self._lock:
            return self._loop.statistics()

    def profile(self) -> Profile:
        """Where the time of all steps since the last `reset_profile` went."""
        return self._loop.profile()

    def reset_profile(self) -> None:
        """Begin the profile anew."""
        self._loop.reset_profile()

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
            return self._loop.abort(request_id)

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

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Generator[Chunk]:
        """Complete one prompt chunk by chunk; the last chunk carries the output. Closing the generator ends the request.

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
            if not self.has_work:
                return []
            emitted = self._loop.step()
            self._log.step(self._loop.lapped_ns)
            return emitted

    def _chunks(self, prompt: Sequence[int], params: SamplingParams) -> Generator[Chunk]:
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
                self._loop.add(request)
        return requests
