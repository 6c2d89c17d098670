"""Frozen configuration that users write."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING

from flexspec.errors import UsageError
from flexspec.grammar.base import Grammar

if TYPE_CHECKING:
    import torch

LogitsProcessor = Callable[[list[int], "torch.Tensor"], "torch.Tensor"]
"""Takes the whole text so far, prompt included, and the logits [vocab] that follow it; returns changed logits.

It must be pure: the same text and logits give the same result, whatever was asked before, for speculation asks about texts
that never come to be."""

MAX_BIAS = 100.0
"""The largest of `logit_bias`; its negative bans a token."""
_MAX_OCCURRENCE_PENALTY = 2.0
_REPETITION_PENALTIES = (0.01, 100.0)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops.

    Logits are changed in this order: logit_bias, repetition, frequency and presence penalty, logits_processors, min_tokens,
    grammar; then come temperature, top_k, top_p and min_p.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all.
        min_p: drop tokens less likely than this fraction of the likeliest one; 0 keeps all.
        presence_penalty: is subtracted from the logit of every token among the new ones; -2 to 2.
        frequency_penalty: is subtracted once for each time that a token occurs among the new ones; -2 to 2.
        repetition_penalty: divides a positive logit, and multiplies a negative one, of every token in the prompt or among the
            new ones; 0.01 to 100, 1 is off.
        logit_bias: is added to the logits of these token ids; -100 to 100, and -100 bans the token.
        logits_processors: functions of the whole text's token ids and the logits [vocab] after it, applied in their order;
            each returns changed logits. They must be pure.
        max_tokens: number of new tokens at which the request ends with `length`.
        min_tokens: the end-of-sequence token and `stop_token_ids` are not chosen before this many new tokens, and stop
            strings completed before do not count.
        stop: strings that end the request with `stop`; the text ends before the first of them.
        stop_token_ids: tokens that end the request with `stop`, as the end-of-sequence token does: they have no text.
        seed: 0 to 2**64 - 1; the same seed gives the same text. None draws a fresh one for each request.
        ignore_eos: go on past the end-of-sequence token.
        grammar: what the new text may be: `flexspec.json_schema(…)`, `flexspec.regex(…)`, or an object with the methods of
            `flexspec.grammar.Grammar`. The text ends where the grammar does, unless something else ends it before.
        logprobs: how many of the likeliest tokens to report with the log probability of each new token; 0 reports that of
            the token alone, None nothing. They are the model's own, before temperature and whatever else changes logits here.
        prompt_logprobs: the same for the tokens of the prompt.
        n: completions of each prompt, each exact and different from the others; more than 1 needs a temperature.

    Raises:
        UsageError: if a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logits_processors: Sequence[LogitsProcessor] | LogitsProcessor = ()
    max_tokens: int = 128
    min_tokens: int = 0
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    ignore_eos: bool = False
    grammar: Grammar | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_penalties()
        self._check_processors()
        self._check_ends()
        allowed = "flexspec.json_schema(…), flexspec.regex(…), or an object with the methods of flexspec.grammar.Grammar"
        _require(self.grammar is None or isinstance(self.grammar, Grammar), "grammar", self.grammar, allowed)
        _require(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**64),
            "seed",
            self.seed,
            "None or a whole number from 0 to 2**64 - 1",
        )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _require(count is None or (_is_int(count) and count >= 0), name, count, "None (off) or a whole number, 0 or more")
        _require(_is_int(self.n) and self.n >= 1, "n", self.n, "a whole number of at least 1")
        if self.n > 1 and self.greedy:
            raise UsageError(f"n={self.n} at temperature=0 would give {self.n} times the same text: give a temperature above 0, or n=1")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop)

    @property
    def processors(self) -> tuple[LogitsProcessor, ...]:
        """`logits_processors` as a tuple."""
        assert not callable(self.logits_processors)
        return tuple(self.logits_processors)

    def _check_distribution(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            self._set_float(name, "a number")
        _require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _require(_is_int(self.top_k) and self.top_k >= 0, "top_k", self.top_k, "a whole number, 0 (off) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 (off) to 1")

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            most = _MAX_OCCURRENCE_PENALTY
            allowed = f"a number from {-most:g} to {most:g}, 0 (off)"
            value = self._set_float(name, allowed)
            _require(-most <= value <= most, name, value, allowed)
        low, high = _REPETITION_PENALTIES
        allowed = f"a number from {low:g} to {high:g}, 1 (off)"
        value = self._set_float("repetition_penalty", allowed)
        _require(low <= value <= high, "repetition_penalty", value, allowed)
        bias, biases = self.logit_bias, dict[int, float]()
        _require(isinstance(bias, Mapping), "logit_bias", bias, "a mapping of token ids to numbers")
        for token, value in bias.items():
            _require(_is_int(token) and token >= 0, "logit_bias", {token: value}, "token ids (whole numbers, 0 or more) as keys")
            allowed = f"numbers from {-MAX_BIAS:g} (never) to {MAX_BIAS:g}"
            number = _as_float(value)
            if number is None or not -MAX_BIAS <= number <= MAX_BIAS:
                raise _refusal("logit_bias", {token: value}, allowed)
            biases[token] = number
        object.__setattr__(self, "logit_bias", biases)

    def _set_float(self, name: str, allowed: str) -> float:
        """Make a float of the number that `name` is, and return it: fractions and the like do not go well with tensors."""
        given = getattr(self, name)
        value = _as_float(given)
        if value is None:
            raise _refusal(name, given, allowed)
        object.__setattr__(self, name, value)
        return value

    def _check_processors(self) -> None:
        given = self.logits_processors
        allowed = "a list of functions of token ids and logits"
        _require(callable(given) or isinstance(given, Sequence), "logits_processors", given, allowed)
        processors = (given,) if callable(given) else tuple(given)
        _require(all(callable(processor) for processor in processors), "logits_processors", given, allowed)
        object.__setattr__(self, "logits_processors", processors)

    def _check_ends(self) -> None:
        _require(isinstance(self.stop, Sequence), "stop", self.stop, "a string, or a list of them")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        _require(all(isinstance(text, str) and text for text in stop), "stop", list(stop), "non-empty strings")
        ids, allowed = self.stop_token_ids, "a list of token ids (whole numbers, 0 or more)"
        _require(isinstance(ids, Sequence) and not isinstance(ids, str | bytes), "stop_token_ids", ids, allowed)
        _require(all(_is_int(token) and token >= 0 for token in ids), "stop_token_ids", ids, allowed)
        object.__setattr__(self, "stop_token_ids", tuple(ids))
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "a whole number of at least 1")
        allowed = f"a whole number from 0 to max_tokens={self.max_tokens}"
        _require(_is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, allowed)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_float(value: object) -> float | None:
    """None for what is no number, or too large for a float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise _refusal(name, value, allowed)


def _refusal(name: str, value: object, allowed: str) -> UsageError:
    try:
        shown = repr(value)
    except ValueError:  # of whole numbers of thousands of digits
        shown = f"a {type(value).__name__} too large to show"
    return UsageError(f"{name}={shown} is not allowed: give {allowed}")
