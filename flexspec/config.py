"""Frozen configuration that users write."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from flexspec.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all.
        min_p: drop tokens less likely than this fraction of the likeliest one; 0 keeps all.
        max_tokens: number of new tokens at which the request ends with `length`.
        stop: strings that end the request with `stop`; the text ends before the first of them.
        seed: 0 to 2**64 - 1; the same seed gives the same text. None draws a fresh one for each request.
        ignore_eos: go on past the end-of-sequence token.

    Raises:
        UsageError: if a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 128
    stop: Sequence[str] | str = ()
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(isinstance(self.stop, Sequence), "stop", self.stop, "a string, or a list of them")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        for name in ("temperature", "top_p", "min_p"):
            _require(isinstance(getattr(self, name), Real), name, getattr(self, name), "a number")
        _require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _require(_is_int(self.top_k) and self.top_k >= 0, "top_k", self.top_k, "a whole number, 0 (off) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 (off) to 1")
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "a whole number of at least 1")
        _require(all(isinstance(text, str) and text for text in stop), "stop", list(stop), "non-empty strings")
        _require(
            self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**64),
            "seed",
            self.seed,
            "None or a whole number from 0 to 2**64 - 1",
        )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise UsageError(f"{name}={value!r} is not allowed: give {allowed}")
