"""The step loop: draft, one LLM pass over all trees and prefill chunks, verify, commit, emit."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch

from flexspec.acceptance import AcceptanceTable
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.adaptation.step_costs import measure_step_costs
from flexspec.runtime.batch_builder import BatchBuilder
from flexspec.runtime.detokenizer import Tokenizer
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.output import Chunk, GenerationInterrupted, Output, StepRecord
from flexspec.runtime.output_text import OutputText
from flexspec.runtime.randomness import fresh_seed
from flexspec.runtime.request import Phase, Request, StopRules
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.scheduler import PrefillChunk, Scheduler
from flexspec.runtime.speculator import Speculator
from flexspec.runtime.stats import PhaseClock, Profile
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.registry import make_verifier
from flexspec.tree_shape import PLAIN, Tree, TreeLimits

# Several drafters, each filling the spec, propose one merged tree: the tail has room for this many of them.
_MERGED_TREES = 4


class Engine:
    """Serves requests with one LLM and, optionally, drafters.

    Args:
        model: the compiled LLM.
        drafters: propose trees, which are merged; none decodes plainly. Their names differ.
        verifier_name: as `make_verifier` takes it.
        tree: the widths drafters fill, or the limits of adaptive trees; no widths decode plainly.
        acceptance: what adaptive trees know beforehand of the drafters' acceptance, and go on learning; None for nothing.
        max_batch: most requests that run at once; more queue.
        max_len: most tokens of a request, prompt and new tokens together.
        pass_tokens: most tokens of one LLM pass; None for what the model takes.
        eos_token_ids: tokens that end a text.
        vocab_limit: token ids from here on are padding and are never emitted; None for none.
        tokenizer: decodes new tokens; None leaves texts empty.
        observer: called with every request's part of every step that emitted tokens.

    Raises:
        UsageError: if the sizes do not fit the model or each other.
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
        eos_token_ids: Sequence[int] = (),
        vocab_limit: int | None = None,
        tokenizer: Tokenizer | None = None,
        observer: Callable[[StepRecord], None] | None = None,
    ) -> None:
        pass_tokens = model.max_pass_tokens if pass_tokens is None else pass_tokens
        _check_sizes(model, max_batch=max_batch, max_len=max_len, pass_tokens=pass_tokens)
        self.model = model
        self.max_len = max_len
        self.observer = observer
        self._verifier_name = verifier_name
        self._tree = tree
        self._rules = StopRules(eos_token_ids=frozenset(eos_token_ids), max_len=max_len)
        self._vocab_limit = model.vocab_size if vocab_limit is None else vocab_limit
        self._tokenizer = tokenizer
        merged_trees = 1 if isinstance(tree, TreeLimits) else _MERGED_TREES
        max_nodes = min(merged_trees * tree.num_nodes, pass_tokens - 1)
        request_slots = max_len + max_nodes
        self._cache = KVCache(KVStorage(model.kv_shape, num_blocks=max_batch, block_size=request_slots))
        self._scheduler = Scheduler(self._cache, max_batch=max_batch, pass_tokens=pass_tokens, request_slots=request_slots)
        self._adaptation: Adaptation | None = None
        if drafters and isinstance(tree, TreeLimits):
            costs = measure_step_costs(model, most=min(max_batch * (1 + max_nodes), pass_tokens))
            self._adaptation = Adaptation(drafters, costs=costs, acceptance=acceptance or AcceptanceTable())
        self._speculator = Speculator(drafters, tree, max_nodes=max_nodes, adaptation=self._adaptation)
        self._builder = BatchBuilder(self._cache, pass_tokens=pass_tokens)
        self._requests: dict[int, Request] = {}
        self._next_id = itertools.count()
        self._clock = PhaseClock()
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

    def profile(self) -> Profile:
        """Where the time of all steps since the last `reset_profile` went."""
        return self._clock.profile()

    def reset_profile(self) -> None:
        """Begin the profile anew."""
        self._clock.reset()

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Queue a prompt and return the id under which `step` reports it; do not mix this with `generate` and `stream`, which step too.

        Raises:
            UsageError: if the prompt is empty, too long or not of this vocabulary, or stop strings have no tokenizer.
        """
        self._check(prompt, params)
        return self._submit(prompt, params, live=True).request_id

    def abort(self, request_id: int) -> Output | None:
        """End a request now, free what it holds, and return what was produced; None if it has ended already."""
        with self._lock:
            return self._abort(request_id)

    def _abort(self, request_id: int) -> Output | None:
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.output is None:
            text = request.finish("abort")
            if request.keep_chunks:
                request.chunks.append(Chunk(request_id=request_id, token_ids=[], num_accepted=0, text=text, output=request.output))
        self._retire(request)
        return request.output

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]) -> list[Output]:
        """Complete every prompt, and return the outputs in the order of the prompts.

        Args:
            prompts: token ids.
            params: for all of them, or one each.

        Raises:
            UsageError: as `add` does; then none of the prompts has been started.
            GenerationInterrupted: on Ctrl-C, with what was produced.
        """
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise UsageError(f"{len(each)} sampling parameters for {len(prompts)} prompts: give one for all, or one each")
        for prompt, its_params in zip(prompts, each, strict=True):
            self._check(prompt, its_params)
        requests: list[Request] = []
        interrupted = False
        try:
            for prompt, its_params in zip(prompts, each, strict=True):
                requests.append(self._submit(prompt, its_params, live=False))
            while any(request.output is None for request in requests):
                self.step()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            for request in requests:
                self.abort(request.request_id)
        outputs = [request.output for request in requests if request.output is not None]
        if interrupted:
            raise GenerationInterrupted(outputs)
        return outputs

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        """Complete one prompt chunk by chunk; the last chunk carries the output. Closing the iterator ends the request.

        Raises:
            UsageError: as `add` does, at once.
            GenerationInterrupted: on Ctrl-C during a step, with what was produced.
        """
        self._check(prompt, params)
        return self._chunks(prompt, params)

    def step(self) -> list[Chunk]:
        """Advance every running request by one LLM pass, and return what was emitted."""
        with self._lock:
            return self._step() if self.has_work else []

    def _step(self) -> list[Chunk]:
        clock = self._clock
        clock.start()
        self._scheduler.admit()
        decoding = self._scheduler.decoding()
        tree_tokens = self._scheduler.tree_tokens()
        clock.lap("schedule")
        drafts = self._speculator.draft(decoding, tree_tokens=tree_tokens, other_tokens=self._scheduler.prefill_tokens())
        draft_s = clock.lap("draft") / 1e9
        trees = list(zip(decoding, drafts, strict=True))
        chunks = self._scheduler.prefill_chunks(sum(len(tree.tokens) for tree in drafts))
        clock.lap("schedule")
        batch = self._builder.build(trees, chunks)
        clock.lap("build")
        logits = self.model.forward(batch, self._cache.storage)
        forward_s = clock.lap("forward") / 1e9
        # The first token is drawn like every other: from a tree of the last token of the prompt alone.
        firsts = [(chunk.request, TokenTree.root(chunk.request.tokens[-1])) for chunk in chunks if chunk.is_last]
        verdicts = self._verify(trees + firsts, logits)
        clock.lap("verify")
        for request in decoding:
            request.stats.draft_s += draft_s
        emitted = self._apply(trees + firsts, verdicts, chunks)
        if self._adaptation is not None and not chunks:
            num_emitted = sum(len(chunk.token_ids) for chunk in emitted)
            self._adaptation.end_step(pass_tokens=batch.num_tokens, emitted=num_emitted, forward_s=forward_s, step_s=clock.elapsed() / 1e9)
        return emitted

    def _verify(self, trees: Sequence[tuple[Request, TokenTree]], logits: torch.Tensor) -> list[Verdict]:
        verdicts: list[Verdict] = []
        first_row = 0
        for request, tree in trees:
            began = perf_counter()
            rows = logits[first_row : first_row + len(tree.tokens)]  # [nodes, vocab]
            verdicts.append(request.verifier.verify(tree, rows.__getitem__, request.sampler, len(request.tokens)))
            first_row += len(tree.tokens)
            request.stats.verify_s += perf_counter() - began
        return verdicts

    def _apply(
        self, trees: Sequence[tuple[Request, TokenTree]], verdicts: Sequence[Verdict], chunks: Sequence[PrefillChunk]
    ) -> list[Chunk]:
        """Commit and emit what a pass decided. A step torn here, by Ctrl-C for example, ends the requests that run."""
        done = False
        try:
            for chunk in chunks:
                self._cache.commit(chunk.request.request_id, range(chunk.count))
                chunk.request.num_computed += chunk.count
            self._clock.lap("commit")
            emitted = [self._emit(request, tree, verdict) for (request, tree), verdict in zip(trees, verdicts, strict=True)]
            self._cache.apply_moves()
            for request, _ in trees:
                if request.output is not None:
                    self._retire(request)
            self._clock.lap("commit")
            done = True
        finally:
            if not done:
                for request in list(self._scheduler.running):
                    self.abort(request.request_id)
        return emitted

    def _emit(self, request: Request, tree: TokenTree, verdict: Verdict) -> Chunk:
        """Append what a verdict says to a request, up to where it ends; the cache keeps all of the text but its last token."""
        accepted = [int(tree.tokens[node]) for node in verdict.path[1:]]
        is_first = request.phase is Phase.PREFILL
        self._speculator.observe(request.request_id, [*accepted, verdict.bonus])
        kept, text, reason = request.emit([*accepted, verdict.bonus])
        num_accepted = min(len(accepted), len(kept))
        request.stats.drafted += tree.num_drafted
        request.stats.accepted += num_accepted
        self._clock.lap("emit")
        if not is_first:
            self._cache.commit(request.request_id, verdict.path[: len(kept)])
        self._clock.lap("commit")
        if reason is not None:
            text += request.finish(reason)
        chunk = Chunk(request_id=request.request_id, token_ids=kept, num_accepted=num_accepted, text=text, output=request.output)
        if request.keep_chunks:
            request.chunks.append(chunk)
        if self.observer is not None:
            path = verdict.path[: num_accepted + 1]
            self.observer(StepRecord(request_id=request.request_id, tree=tree, path=path, token_ids=kept))
        self._clock.lap("emit")
        return chunk

    def _retire(self, request: Request) -> None:
        self._scheduler.remove(request)
        self._speculator.release(request.request_id)
        del self._requests[request.request_id]

    def _chunks(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Chunk]:
        request = self._submit(prompt, params, live=True, keep_chunks=True)
        try:
            while request.chunks or request.output is None:
                if request.chunks:
                    yield request.chunks.popleft()
                else:
                    self.step()
        except KeyboardInterrupt:
            self.abort(request.request_id)
            raise GenerationInterrupted([output for output in (request.output,) if output is not None]) from None
        finally:
            self.abort(request.request_id)

    def _submit(self, prompt: Sequence[int], params: SamplingParams, *, live: bool, keep_chunks: bool = False) -> Request:
        seed = fresh_seed() if params.seed is None else params.seed
        text = None if self._tokenizer is None else OutputText(self._tokenizer, params.stop_strings, live=live)
        request = Request(
            next(self._next_id),
            [int(token) for token in prompt],
            params,
            sampler=RequestSampler(params, seed=seed, vocab_limit=self._vocab_limit),
            verifier=make_verifier(self._verifier_name, params),
            rules=self._rules,
            text=text,
            keep_chunks=keep_chunks,
        )
        with self._lock:
            self._requests[request.request_id] = request
            self._scheduler.add(request)
        return request

    def _check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if len(prompt) == 0:
            raise UsageError("the prompt is empty: give at least one token")
        if len(prompt) >= self.max_len:
            raise UsageError(f"a prompt of {len(prompt)} tokens is too long: at most {self.max_len - 1} leave room for one new token")
        if min(prompt) < 0 or max(prompt) >= self.model.vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < self.model.vocab_size)
            raise UsageError(f"token id {wrong} in the prompt is not allowed: give 0 to {self.model.vocab_size - 1}")
        if params.stop_strings and self._tokenizer is None:
            raise UsageError(f"stop={list(params.stop_strings)} needs text, and this model has no tokenizer: give one, or leave out `stop`")
        make_verifier(self._verifier_name, params)


def _check_sizes(model: CompiledModel, *, max_batch: int, max_len: int, pass_tokens: int) -> None:
    if not 1 <= pass_tokens <= model.max_pass_tokens:
        raise UsageError(f"pass_tokens={pass_tokens} is not allowed: give 1 to {model.max_pass_tokens}, the most this model takes at once")
    if not 1 <= max_batch <= pass_tokens:
        raise UsageError(f"max_batch={max_batch} is not allowed: give 1 to {pass_tokens}, the most tokens of one pass")
    if max_len < 2 or (model.max_positions is not None and max_len > model.max_positions):
        allowed = "2 or more" if model.max_positions is None else f"2 to {model.max_positions}, the positions of this model"
        raise UsageError(f"max_len={max_len} is not allowed: give {allowed}")
