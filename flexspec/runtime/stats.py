"""Counts and times of requests, and where the engine's time goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

from flexspec.runtime.draft_counts import DraftCounts

PHASES = ("schedule", "draft", "build", "forward", "verify", "commit", "emit")


@dataclass(kw_only=True)
class RequestStats:
    """What one request took.

    Attributes:
        new_tokens: tokens emitted.
        steps: LLM passes that emitted tokens for it, the one with the last chunk of its prompt included.
        drafted: tokens drafted for it and verified.
        accepted: drafted tokens that were accepted and emitted; the bonus tokens are not among them.
        acceptance: the same by depth, rank and drafter.
        queued_s: seconds until it was first scheduled.
        prefill_s: seconds from there to its first token.
        decode_s: seconds from its first token to its last.
        draft_s: seconds of `decode_s` in which drafters worked, for all requests of the step together.
        forward_s: seconds of `decode_s` of the LLM's passes, likewise.
        verify_s: seconds in which its own trees were verified, the LLM's pass not counted.
    """

    new_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance: DraftCounts = field(default_factory=DraftCounts, repr=False, compare=False)
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens emitted by an LLM pass, bonus tokens included; 0 before the first."""
        return self.new_tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted tokens that were emitted, from 0 to 1; 0 if none were drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second after the first one; 0 if there is only one."""
        return (self.new_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything above by name, `acceptance` as `DraftCounts.to_json` gives it."""
        counts = {one.name: getattr(self, one.name) for one in fields(self)}
        rates = {name: getattr(self, name) for name in ("tokens_per_step", "acceptance_rate", "decode_tokens_per_s")}
        return counts | {"acceptance": self.acceptance.to_json()} | rates


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the engine's time went.

    Attributes:
        steps: steps taken.
        seconds: by phase: `schedule`, `draft` (the drafters, their models' passes included), `build` (the batch),
            `forward` (the LLM's pass, and drafting that a device does before it without the host waiting), `verify` (sampling
            included), `commit` (of the KV cache) and `emit` (stop checks, text).
    """

    steps: int
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def per_step_ms(self) -> dict[str, float]:
        """Milliseconds of a step by phase."""
        return {phase: 1e3 * seconds / max(self.steps, 1) for phase, seconds in self.seconds.items()}

    def bookkeeping_share(self, *, draft_is_bookkeeping: bool) -> float:
        """Share of the time outside model passes, from 0 to 1.

        Args:
            draft_is_bookkeeping: True if the drafters run no model, so that their time counts as well.
        """
        passes = self.seconds["forward"] + (0.0 if draft_is_bookkeeping else self.seconds["draft"])
        return 1.0 - passes / self.total_s if self.total_s else 0.0


@dataclass
class PhaseClock:
    """Adds up the nanoseconds of each phase of the step; a lap costs about 0.1 µs."""

    steps: int = 0
    _nanoseconds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    _steps_before: int = 0
    _nanoseconds_before: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    _last: int = 0
    _began: int = 0

    def start(self) -> None:
        """A step begins."""
        self.steps += 1
        self._last = self._began = perf_counter_ns()

    def lap(self, phase: str) -> int:
        """Count the time since the last lap as `phase`, and return its nanoseconds."""
        now = perf_counter_ns()
        elapsed = now - self._last
        self._nanoseconds[phase] += elapsed
        self._last = now
        return elapsed

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count time of one phase, which it spent waiting for another, as the other's."""
        self._nanoseconds[source] -= round(1e9 * seconds)
        self._nanoseconds[target] += round(1e9 * seconds)

    def elapsed(self) -> int:
        """Nanoseconds since the step began."""
        return perf_counter_ns() - self._began

    @property
    def lapped(self) -> int:
        """Nanoseconds from the start of the step to its last lap; the clock is not read."""
        return self._last - self._began

    def reset(self) -> None:
        """Begin the profile anew."""
        self._steps_before = self.steps
        self._nanoseconds_before = dict(self._nanoseconds)

    def profile(self) -> Profile:
        """The times since the last `reset`."""
        seconds = {phase: (nanoseconds - self._nanoseconds_before[phase]) / 1e9 for phase, nanoseconds in self._nanoseconds.items()}
        return Profile(steps=self.steps - self._steps_before, seconds=MappingProxyType(seconds))

    def lifetime(self) -> Profile:
        """All times, whether or not `reset` was called."""
        seconds = {phase: nanoseconds / 1e9 for phase, nanoseconds in self._nanoseconds.items()}
        return Profile(steps=self.steps, seconds=MappingProxyType(seconds))
