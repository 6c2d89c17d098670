"""Prompts and parameters → requests."""

import itertools
from collections.abc import Sequence

from flexspec.config import SamplingParams
from flexspec.runtime.detokenizer import Tokenizer
from flexspec.runtime.logit_rules.base import LogitRule
from flexspec.runtime.logit_rules.factory import make_rules
from flexspec.runtime.output_text import OutputText
from flexspec.runtime.randomness import fresh_seed
from flexspec.runtime.request import Request, StopRules
from flexspec.runtime.request_check import check_request
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.verifiers.registry import make_verifier


class RequestFactory:
    """Makes the requests of one engine, and numbers them.

    Args:
        verifier_name: as `make_verifier` takes it.
        stop_rules: what ends any request.
        vocab_size: columns of the LLM's logits.
        vocab_limit: token ids from here on are padding and are never emitted.
        tokenizer: decodes new tokens; None leaves texts empty.
    """

    def __init__(
        self, *, verifier_name: str, stop_rules: StopRules, vocab_size: int, vocab_limit: int, tokenizer: Tokenizer | None
    ) -> None:
        self._verifier_name = verifier_name
        self._stop_rules = stop_rules
        self._vocab_size = vocab_size
        self._vocab_limit = vocab_limit
        self._tokenizer = tokenizer
        self._next_id = itertools.count()

    def check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """Raise UsageError if a request can't be made of these."""
        has_tokenizer = self._tokenizer is not None
        check_request(prompt, params, max_len=self._stop_rules.max_len, vocab_size=self._vocab_size, has_tokenizer=has_tokenizer)
        make_verifier(self._verifier_name, params)
        self._logit_rules(params)

    def make(self, prompt: Sequence[int], params: SamplingParams, *, live: bool, keep_chunks: bool = False) -> list[Request]:
        """The completions of a prompt, of one seed.

        Args:
            prompt: token ids, checked.
            params: with `n`, the number of completions.
            live: whether text is wanted with every step.
            keep_chunks: whether the chunks of steps are kept for a stream to fetch.
        """
        seed = fresh_seed() if params.seed is None else params.seed
        return [self._make(prompt, params, seed, completion, live, keep_chunks) for completion in range(params.n)]

    def _make(self, prompt: Sequence[int], params: SamplingParams, seed: int, completion: int, live: bool, keep_chunks: bool) -> Request:
        text = None
        if self._tokenizer is not None:
            text = OutputText(self._tokenizer, params.stop_strings, min_tokens=params.min_tokens, live=live)
        rules = self._logit_rules(params)
        return Request(
            next(self._next_id),
            [int(token) for token in prompt],
            params,
            sampler=RequestSampler(params, seed=seed, vocab_limit=self._vocab_limit, completion=completion, rules=rules),
            verifier=make_verifier(self._verifier_name, params),
            rules=self._stop_rules,
            text=text,
            keep_chunks=keep_chunks,
        )

    def _logit_rules(self, params: SamplingParams) -> list[LogitRule]:
        return make_rules(params, ends=self._stop_rules.ends(params), vocab_size=self._vocab_limit, tokenizer=self._tokenizer)
