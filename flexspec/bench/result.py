"""What a benchmark gives for one batch size, and all of them as JSON."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from flexspec.api.llm import LLM
from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import Measurement
from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.stats import Profile

FORMAT = "flexspec-bench"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What came out for one batch size.

    Attributes:
        llm: the compiled model.
        date: when it began, in UTC, as ISO 8601 has it.
        machine: what it ran on.
        versions: of what ran.
        settings: what was asked for, defaults filled in; `batch` is this one of its `batches`.
        rows: by category and system; the main system comes first, then plain decoding.
        ratios: by `system/system`, over all prompts.
        ratios_by_category: likewise, by category; empty if there is only one.
        profiles: where decode steps spent their time, by name of our systems.
        drafts: what became of the drafted nodes, by name of the systems that draft and by category, `all` for all together.
        undrafted: share of the proposals of synthetic acceptance that were left empty, because rounding had made another text of the
            recorded one; None without such drafts.
        samples: every group of prompts, as it was measured.
        left_out: peers that could not be measured, and why.
        too_long: ids of prompts that don't fit.
        too_few: ids of prompts at the end that were too few for another group.
        interrupted: whether Ctrl-C ended it early; then the samples are those made until then.
    """

    llm: LLM
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    rows: Sequence[Row]
    ratios: dict[str, Ratio]
    ratios_by_category: dict[str, dict[str, Ratio]]
    profiles: dict[str, Profile]
    drafts: Mapping[str, Mapping[str, DraftCounts]]
    undrafted: float | None
    samples: Sequence[Sample]
    left_out: dict[str, str]
    too_long: Sequence[str]
    too_few: Sequence[str]
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        """This part of what `flexspec bench --save` writes."""
        return {
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "interrupted": self.interrupted,
            "rows": [asdict(row) for row in self.rows],
            "ratios": _ratios_as_json(self.ratios),
            "ratios_by_category": {category: _ratios_as_json(ratios) for category, ratios in self.ratios_by_category.items()},
            "step_ms": {name: {"steps": profile.steps, **profile.per_step_ms()} for name, profile in self.profiles.items()},
            "drafts": {name: {category: _drafts_as_json(one) for category, one in counts.items()} for name, counts in self.drafts.items()},
            "undrafted": self.undrafted,
            "samples": [_sample_as_json(sample) for sample in self.samples],
            "left_out": {"peers": self.left_out, "prompts": [*self.too_long, *self.too_few]},
        }


def missing_batches(results: Sequence[BenchResult]) -> list[int]:
    """The batch sizes that an interrupted benchmark did not come to."""
    measured = [result.settings["batch"] for result in results]
    return [batch for batch in results[0].settings["batches"] if batch not in measured]


def results_as_json(results: Sequence[BenchResult]) -> dict[str, Any]:
    """What `flexspec bench --save` writes: one result a batch size."""
    return {"format": FORMAT, "version": FORMAT_VERSION, "results": [result.to_json() for result in results]}


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
        "prompts": [{"id": prompt.id, "digest": _digest(prompt.token_ids)} for prompt in sample.group.prompts],
        "category": sample.group.category,
        "measurements": {name: _measurement_as_json(one) for name, one in sample.measurements.items()},
    }


def _measurement_as_json(measurement: Measurement) -> dict[str, Any]:
    return {one.name: getattr(measurement, one.name) for one in fields(measurement) if one.name != "drafts"}


def _digest(token_ids: Sequence[int]) -> str:
    """Tells prompts apart that different files call the same."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]
