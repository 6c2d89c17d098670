"""Decides, step by step, which requests run and how the tokens of a pass are shared out."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Phase, Request

# While prompts wait, trees leave them at least this share of a pass, so that a full batch of large trees
# does not starve them.
_PREFILL_SHARE = 4

# Most tokens of a step that put out logits for the log probabilities of a prompt: 25 MB of them at 49,152 columns, and what
# is computed from them delays the requests that decode in the same step.
PROMPT_LOGPROB_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class PrefillChunk:
    """The next tokens of a prompt.

    Attributes:
        request: whose prompt.
        count: how many tokens, from the first uncomputed one on.
    """

    request: Request
    count: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with it."""
        return self.count == self.request.num_uncomputed

    @property
    def num_outputs(self) -> int:
        """How many of its tokens, the last ones, put out logits: all for log probabilities of the prompt, else the prompt's last."""
        return self.count if self.request.prompt_logprobs is not None else int(self.is_last)


class Scheduler:
    """Iteration-level scheduling: requests join and leave between any two steps.

    Args:
        cache: gives every running request its slots.
        max_batch: most requests that run at once; the others wait in the order in which they came.
        pass_tokens: most tokens of one pass, trees and prefill chunks together.
            At least `max_batch`, so that every request that runs has a token in it.
        request_slots: slots a running request needs, tail included.
    """

    def __init__(self, cache: KVCache, *, max_batch: int, pass_tokens: int, request_slots: int) -> None:
        assert 1 <= max_batch <= pass_tokens, f"{max_batch} requests in passes of {pass_tokens} tokens"
        self._cache = cache
        self._max_batch = max_batch
        self._pass_tokens = pass_tokens
        self._request_slots = request_slots
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> Sequence[Request]:
        """The requests that run, in the order in which they joined."""
        return self._running

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def remove(self, request: Request) -> None:
        """Take out a request, running or waiting, and free its slots."""
        if request in self._running:
            self._running.remove(request)
            self._cache.free(request.request_id)
        elif request in self._waiting:
            self._waiting.remove(request)

    def admit(self) -> None:
        """Let waiting requests join while there is room, first come, first served."""
        while self._waiting and len(self._running) < self._max_batch and self._cache.can_allocate(self._request_slots):
            request = self._waiting.popleft()
            self._cache.allocate(request.request_id, self._request_slots)
            self._running.append(request)
            request.start_prefill()

    def decoding(self) -> list[Request]:
        """The running requests that get a tree in this step: all whose prompts are computed."""
        return [request for request in self._running if request.phase is Phase.DECODE]

    def tree_tokens(self) -> int:
        """Most tokens of all trees of this step, roots included."""
        decoding = len(self.decoding())
        uncomputed = sum(count for _, count in self._prompts())
        reserved = min(uncomputed, max(1, self._pass_tokens // _PREFILL_SHARE), self._pass_tokens - decoding)
        return self._pass_tokens - reserved

    def prefill_tokens(self) -> int:
        """Most tokens of prompts in this step."""
        uncomputed = sum(count for _, count in self._prompts())
        return min(uncomputed, self._pass_tokens - len(self.decoding()))

    def prefill_chunks(self, tree_tokens: int) -> list[PrefillChunk]:
        """Share out what the trees left of the pass among the prompts, first come, first served.

        Args:
            tree_tokens: tokens of all trees of this step.
        """
        left = self._pass_tokens - tree_tokens
        assert left >= 0, f"trees of {tree_tokens} tokens in a pass of {self._pass_tokens}"
        chunks: list[PrefillChunk] = []
        for request, most in self._prompts():
            count = min(most, left)
            if count:
                chunks.append(PrefillChunk(request=request, count=count))
                left -= count
        return chunks

    def _prompts(self) -> list[tuple[Request, int]]:
        """The requests whose prompts are not computed, and how many of their tokens a step may take at most."""
        prompts: list[tuple[Request, int]] = []
        with_outputs = PROMPT_LOGPROB_TOKENS
        for request in self._running:
            count = request.num_uncomputed
            if request.prompt_logprobs is not None:
                count = min(count, with_outputs)
                with_outputs -= count
            if count:
                prompts.append((request, count))
        return prompts
