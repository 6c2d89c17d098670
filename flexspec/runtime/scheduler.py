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
    """The next tokens of a prompt, or of the whole text of a request that was preempted.

    Attributes:
        request: whose text.
        count: how many tokens, from the first uncomputed one on.
    """

    request: Request
    count: int

    @property
    def is_last(self) -> bool:
        """Whether the first new token follows it: the prompt ends with it, and nothing has been emitted yet."""
        return self.count == self.request.num_uncomputed and not self.request.has_new_tokens

    @property
    def num_outputs(self) -> int:
        """How many of its tokens, the last ones, put out logits: those whose log probabilities are wanted, or the prompt's last."""
        return max(0, self.count - self.request.num_silent)


class Scheduler:
    """Iteration-level scheduling: requests join and leave between any two steps.

    A request that joins gets the blocks of all that has to be computed, and more as it grows. Where blocks are scarce, trees
    become smaller; where there are none for the roots, the requests that joined last are preempted: they lose their slots,
    wait at the front of the queue, and later compute their text so far anew, all of it but the last token.

    Requests may be divided into micro-batches, whose steps overlap: a step takes its share of those that are in no other.

    Args:
        cache: gives every running request its slots; it must hold the longest request with a usual tail.
        max_batch: most requests that run at once; the others wait in the order in which they came.
        pass_tokens: most tokens of one pass, trees and prefill chunks together.
            At least `max_batch`, so that every request that runs has a token in it.
        tail_slots: slots of a usual tree, which are kept free for every request before others join.
        max_tail_slots: slots of the largest tree.
        micro_batches: steps that may be under way at once.

    Attributes:
        num_preemptions: how often a request was preempted.
    """

    def __init__(
        self, cache: KVCache, *, max_batch: int, pass_tokens: int, tail_slots: int, max_tail_slots: int, micro_batches: int = 1
    ) -> None:
        assert 1 <= max_batch <= pass_tokens, f"{max_batch} requests in passes of {pass_tokens} tokens"
        self.num_preemptions = 0
        self._cache = cache
        self._max_batch = max_batch
        self._pass_tokens = pass_tokens
        self._tail_slots = tail_slots
        self._max_tail_slots = max_tail_slots
        self._is_paged = cache.blocks_per_request > 1  # else a request's only block holds all that it can ever need
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._micro_batches = micro_batches
        self._under_way: set[int] = set()

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
        elif request in self._waiting:
            self._waiting.remove(request)
        self._cache.free(request.request_id)

    def begin(self, requests: Sequence[Request]) -> None:
        """A step of these is under way: until it ends, no other one takes them."""
        self._under_way.update(request.request_id for request in requests)

    def end(self, requests: Sequence[Request]) -> None:
        """Their step has ended."""
        self._under_way.difference_update(request.request_id for request in requests)

    def make_room(self) -> list[Request] | None:
        """Preempt requests, those that joined last first, until every decoding one can have its root; those preempted.

        None: there is no room until a step that is under way has ended.
        """
        preempted: list[Request] = []
        while self._is_paged and sum(self._missing_blocks(1)) > self._cache.num_free_blocks:
            free = self._free()
            if len(free) == 1:
                assert self._under_way and not preempted, f"request {free[0].request_id} alone does not fit the cache"
                return None
            request = free[-1]
            self._running.remove(request)
            self._cache.free(request.request_id)
            request.preempt()
            self._waiting.appendleft(request)
            preempted.append(request)
        self.num_preemptions += len(preempted)
        return preempted

    def admit(self) -> None:
        """Let waiting requests join, first come, first served, while there is room for their texts and a tail for everyone.

        What the tails of those that run may take in this very step is left to them: a request that took it would soon be preempted.
        """
        while self._waiting and len(self._running) < self._max_batch:
            request = self._waiting[0]
            slots = request.num_uncomputed + self._tail_slots
            # With more requests a micro-batch is larger: those of later ones may come into this one.
            tails = sum(self._missing_blocks(self._tail_slots, self._free())) if self._is_paged else 0
            if not self._cache.can_allocate(slots + tails * self._cache.storage.block_size):
                break
            self._waiting.popleft()
            self._cache.allocate(request.request_id, slots)
            self._running.append(request)
            request.start_prefill()

    def tree_rooms(self) -> list[int] | None:
        """Most tokens of each decoding request's tree, its root included, for the blocks there are; None if there are enough for all.

        Blocks are dealt out one by one, first come, first served, until every tail is as long as a tail can be.
        """
        if not self._is_paged:
            return None
        counts, wanted = self._missing_blocks(1), self._missing_blocks(self._max_tail_slots)
        left = self._cache.num_free_blocks - sum(counts)
        assert left >= 0, "`make_room` was not called"
        if sum(wanted) - sum(counts) <= left:
            return None
        while left:
            for place, most in enumerate(wanted):
                if left and counts[place] < most:
                    counts[place] += 1
                    left -= 1
        size, cache = self._cache.storage.block_size, self._cache
        return [
            cache.capacity(request.request_id) + count * size - cache.length(request.request_id)
            for request, count in zip(self.decoding(), counts, strict=True)
        ]

    def decoding(self) -> list[Request]:
        """The requests that get a tree in this step: those of its micro-batch whose prompts are computed."""
        return [request for request in self._micro_batch() if request.phase is Phase.DECODE]

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

    def _micro_batch(self) -> list[Request]:
        """This step's share of the requests that are in no other."""
        share = -(-len(self._running) // self._micro_batches)
        return self._free()[:share]

    def _free(self) -> list[Request]:
        """The requests that run and are in no step under way."""
        return [request for request in self._running if request.request_id not in self._under_way]

    def _missing_blocks(self, tail_slots: int, requests: Sequence[Request] | None = None) -> list[int]:
        """For each decoding request of this step, or of `requests`, the blocks that a tail of so many slots would take."""
        candidates = self._micro_batch() if requests is None else requests
        return [self._cache.missing_blocks(one.request_id, tail_slots) for one in candidates if one.phase is Phase.DECODE]

    def _prompts(self) -> list[tuple[Request, int]]:
        """The requests whose prompts are not computed, and how many of their tokens a step may take at most."""
        prompts: list[tuple[Request, int]] = []
        with_outputs = PROMPT_LOGPROB_TOKENS
        for request in self._micro_batch():
            count = request.num_uncomputed
            if request.prompt_logprobs is not None:
                silent = request.num_silent
                count = min(count, silent + with_outputs)
                with_outputs -= max(0, count - silent)
            if count:
                prompts.append((request, count))
        return prompts
