"""Where a decode step of one system spends its time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flexspec.runtime.stats import PHASES, Profile


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The mean over decode steps.

    Attributes:
        steps: how many there were.
        ms: milliseconds of a step by phase, as `flexspec.runtime.stats.Profile` names them.
        bookkeeping: share of the time outside model passes, from 0 to 1.
        drafters_run_models: whether drafting is model passes; if not, it is bookkeeping.
    """

    steps: int
    ms: Mapping[str, float]
    bookkeeping: float
    drafters_run_models: bool

    @classmethod
    def of(cls, profile: Profile, *, drafters_run_models: bool) -> Self:
        """What a profile tells."""
        return cls(
            steps=profile.steps,
            ms=profile.per_step_ms(),
            bookkeeping=profile.bookkeeping_share(draft_is_bookkeeping=not drafters_run_models),
            drafters_run_models=drafters_run_models,
        )

    def to_json(self) -> dict[str, Any]:
        """All of it in one dictionary, a phase an entry."""
        return {
            "steps": self.steps,
            **self.ms,
            "bookkeeping": self.bookkeeping,
            "drafters_run_models": self.drafters_run_models,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(
            steps=int(content["steps"]),
            ms={phase: float(content[phase]) for phase in PHASES},
            bookkeeping=float(content["bookkeeping"]),
            drafters_run_models=bool(content["drafters_run_models"]),
        )
