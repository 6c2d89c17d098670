"""What a benchmark gives."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flexspec.api.llm import LLM
from flexspec.bench.interleave import Sample
from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.stats import Profile


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What came out.

    Attributes:
        llm: the compiled model.
        machine: what it ran on.
        versions: of what ran.
        settings: what was asked for, defaults filled in.
        rows: by category and system.
        ratios: by `system/system`, over all prompts.
        ratios_by_category: likewise, by category; empty if there is only one.
        profiles: where decode steps spent their time, by name of our systems.
        drafts: what became of the drafted nodes, by name of our systems that draft.
        samples: every group of prompts, as it was measured.
        left_out: peers that could not be measured, and why.
        too_long: ids of prompts that don't fit.
        too_few: ids of prompts at the end that were too few for another group.
        interrupted: whether Ctrl-C ended it early; then the samples are those made until then.
    """

    llm: LLM
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    rows: Sequence[Row]
    ratios: dict[str, Ratio]
    ratios_by_category: dict[str, dict[str, Ratio]]
    profiles: dict[str, Profile]
    drafts: Mapping[str, DraftCounts]
    samples: Sequence[Sample]
    left_out: dict[str, str]
    too_long: Sequence[str]
    too_few: Sequence[str]
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        """What `flexspec bench --json` writes."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "interrupted": self.interrupted,
            "rows": [asdict(row) for row in self.rows],
            "ratios": _ratios_as_json(self.ratios),
            "ratios_by_category": {category: _ratios_as_json(ratios) for category, ratios in self.ratios_by_category.items()},
            "step_ms": {name: {"steps": profile.steps, **profile.per_step_ms()} for name, profile in self.profiles.items()},
            "drafts": {name: _drafts_as_json(counts) for name, counts in self.drafts.items()},
            "samples": [_sample_as_json(sample) for sample in self.samples],
            "left_out": {"peers": self.left_out, "prompts": [*self.too_long, *self.too_few]},
        }


def _ratios_as_json(ratios: Mapping[str, Ratio]) -> dict[str, Any]:
    return {name: asdict(ratio) for name, ratio in ratios.items()}


def _drafts_as_json(counts: DraftCounts) -> dict[str, Any]:
    depths = {
        drafter: [{"depth": depth, **count._asdict()} for depth, count in counts.by_depth(drafter).items()]
        for drafter in counts.by_drafter()
    }
    return counts.to_json() | {"by_depth_of_drafter": depths}


def _sample_as_json(sample: Sample) -> dict[str, Any]:
    return {
        "prompts": [prompt.id for prompt in sample.group.prompts],
        "category": sample.group.category,
        "measurements": {name: asdict(one) for name, one in sample.measurements.items()},
    }
