"""A request on its way through the engine."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter

from flexspec.config import SamplingParams
from flexspec.runtime.logprobs import TokenLogprobs
from flexspec.runtime.output import Chunk, FinishReason, Output
from flexspec.runtime.output_text import OutputText
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.stats import RequestStats
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verifier


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class StopRules:
    """What ends any request of an engine.

    Attributes:
        eos_token_ids: tokens that end a text.
        max_len: most tokens of prompt and new tokens together.
    """

    eos_token_ids: frozenset[int]
    max_len: int

    def ends(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that end a request with `params`."""
        eos = frozenset() if params.ignore_eos else self.eos_token_ids
        return eos.union(params.stop_token_ids)


class Request:
    """One prompt, its parameters, and what was emitted for it.

    Args:
        request_id: its name.
        prompt: at least one token id.
        params: how it is sampled and when it stops.
        sampler: chooses its tokens.
        verifier: walks its trees.
        rules: what ends it besides its own parameters.
        text: its text, or None without a tokenizer.
        keep_chunks: whether the chunks of its steps are kept for a stream to fetch.

    Attributes:
        tokens: the whole text, prompt included. Between steps its cache holds all of it but the last token, which the next pass feeds.
        num_computed: tokens that prefill has put into its cache: of the prompt, or after preemption of the text so far.
        logprobs: entries of the new tokens, and maybe of a few after its end; None unless it asks for them.
        prompt_logprobs: entries of the prompt's tokens as far as it is computed, None for the first; None unless it asks for them.
        chunks: what its steps added and no stream has fetched yet.
        output: what it came to, once it is finished.
        error: why it could not go on, if it could not.
    """

    def __init__(
        self,
        request_id: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        sampler: RequestSampler,
        verifier: Verifier,
        rules: StopRules,
        text: OutputText | None,
        keep_chunks: bool,
    ) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.num_computed = 0
        self._num_to_compute = len(prompt)
        self.sampler = sampler
        self.verifier = verifier
        self.keep_chunks = keep_chunks
        self.phase = Phase.WAITING
        self.stats = RequestStats()
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None if params.prompt_logprobs is None else [None]
        self.chunks: deque[Chunk] = deque()
        self.output: Output | None = None
        self.error: Exception | None = None
        self._ends = rules.ends(params)
        self.sampler.extend(self.tokens)
        self._limit = min(rules.max_len, len(prompt) + params.max_tokens)
        self._text = text
        self._added_at = self._first_token_at = perf_counter()
        self._scheduled_at: float | None = None

    @property
    def num_remaining(self) -> int:
        """New tokens it may still emit."""
        return self._limit - len(self.tokens)

    @property
    def has_new_tokens(self) -> bool:
        """Whether anything was emitted."""
        return len(self.tokens) > self.prompt_length

    @property
    def num_uncomputed(self) -> int:
        """Tokens that prefill still has to put into its cache."""
        return self._num_to_compute - self.num_computed

    @property
    def num_silent(self) -> int:
        """How many of them, the next ones, need no logits."""
        if self.has_new_tokens:
            return self.num_uncomputed
        first = self.prompt_length - 1 if self.prompt_logprobs is None else len(self.prompt_logprobs) - 1
        return max(0, first - self.num_computed)

    def start_prefill(self) -> None:
        """It has its slots and runs from now on."""
        self.phase = Phase.PREFILL
        if self._scheduled_at is None:
            self._scheduled_at = perf_counter()
            self.stats.queued_s = self._scheduled_at - self._added_at

    def computed(self, count: int) -> None:
        """Prefill has put `count` more tokens into its cache; one that was preempted while it decoded goes on where it was."""
        self.num_computed += count
        if self.has_new_tokens and not self.num_uncomputed:
            self.phase = Phase.DECODE

    def preempt(self) -> None:
        """It has lost its slots: what they held is computed anew when it runs again, and nothing else of it changes."""
        self.phase = Phase.WAITING
        self.num_computed = 0
        self._num_to_compute = len(self.tokens) - 1 if self.has_new_tokens else self.prompt_length

    def emit(self, candidates: list[int], logprobs: list[TokenLogprobs] | None = None) -> tuple[list[int], str, FinishReason | None]:
        """Append the tokens of a step up to the first that ends the request: text, ids and cache hold no more than those.

        Args:
            candidates: the accepted tokens and the bonus token.
            logprobs: an entry for each of them, if the request asks for that.

        Returns:
            The tokens kept, the new text that is final, and why the request is over, if it is.
        """
        kept, reason = self._cut_at_end(candidates)
        text = ""
        if self._text is not None:
            # A token that ends the text has none of its own, whether or not the tokenizer counts it among the special ones.
            count, text = self._text.feed(kept[:-1] if reason == "stop" else kept)
            if self._text.stopped:
                kept, reason = kept[:count], "stop"
        if self.logprobs is not None and logprobs is not None:
            # Before the tokens: a step torn in between leaves none of them without its entry.
            self.logprobs += logprobs
        self.tokens += kept
        self.sampler.extend(kept)
        self.stats.steps += 1
        self.stats.new_tokens += len(kept)
        if self.phase is Phase.PREFILL:
            self.phase = Phase.DECODE
            assert self._scheduled_at is not None, "it has never run"
            self._first_token_at = perf_counter()
            self.stats.prefill_s = self._first_token_at - self._scheduled_at
        return kept, text, reason

    def finish(self, reason: FinishReason, error: Exception | None = None) -> str:
        """End the request, set `output`, and return the text that was held back until now."""
        if self.has_new_tokens:
            self.stats.decode_s = perf_counter() - self._first_token_at
        self.phase = Phase.FINISHED
        rest = self._text.finish() if self._text is not None else ""
        self.error = error
        self.output = Output(
            prompt_token_ids=self.tokens[: self.prompt_length],
            token_ids=self.tokens[self.prompt_length :],
            text=self._text.text if self._text is not None else "",
            finish_reason=reason,
            completion=self.sampler.completion,
            error=None if error is None else str(error),
            logprobs=None if self.logprobs is None else self.logprobs[: len(self.tokens) - self.prompt_length],
            prompt_logprobs=self.prompt_logprobs,
            stats=self.stats,
        )
        return rest

    def add_prompt_logprobs(self, entries: list[TokenLogprobs]) -> None:
        """More of them, in order; none for a request that does not ask."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += entries

    def end(self, reason: FinishReason, error: Exception | None = None) -> Chunk:
        """End the request where it stands, outside its steps."""
        return self.report([], self.finish(reason, error))

    def report(self, token_ids: list[int], text: str, *, num_accepted: int = 0, logprobs: Sequence[TokenLogprobs] | None = None) -> Chunk:
        """What was added to it, as a chunk, kept for a stream that wants it; arguments as its attributes."""
        chunk = Chunk(
            request_id=self.request_id,
            token_ids=token_ids,
            num_accepted=num_accepted,
            text=text,
            output=self.output,
            logprobs=None if self.logprobs is None else list(logprobs or ()),
        )
        if self.keep_chunks:
            self.chunks.append(chunk)
        return chunk

    def count_drafts(self, tree: TokenTree, path: Sequence[int], *, num_kept: int, verify_s: float) -> int:
        """Add a verified tree to the statistics.

        Args:
            tree: what was verified.
            path: its accepted nodes, from the root down.
            num_kept: tokens emitted.
            verify_s: seconds that verification took.

        Returns:
            How many of the emitted tokens were drafted.
        """
        num_accepted = min(len(path) - 1, num_kept)
        self.stats.verify_s += verify_s
        self.stats.drafted += tree.num_drafted
        self.stats.accepted += num_accepted
        if tree.num_drafted:
            self.stats.acceptance.record(tree, path, num_kept)
        return num_accepted

    def _cut_at_end(self, candidates: list[int]) -> tuple[list[int], FinishReason | None]:
        remaining = self.num_remaining
        for count, token in enumerate(candidates, start=1):
            if token in self._ends:
                return candidates[:count], "stop"
            if count == remaining:
                return candidates[:count], "length"
        return candidates, None
