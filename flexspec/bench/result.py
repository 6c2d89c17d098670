"""What a benchmark gives for one batch size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.interleave import Sample
from flexspec.bench.report import Row
from flexspec.bench.statistics import Ratio
from flexspec.bench.step_times import StepTimes


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What came out for one batch size.

    Attributes:
        date: when it began, in UTC, as ISO 8601 has it.
        machine: what it ran on.
        versions: of what ran.
        settings: what was asked for, defaults filled in; `batch` is this one of its `batches`.
        rows: by category and system; the main system comes first, then plain decoding.
        ratios: by `system/system`, over all prompts.
        ratios_by_category: likewise, by category; empty if there is only one.
        step_times: where decode steps spent their time, by name of our systems.
        drafts: what became of the drafted nodes, by name of the systems that draft and by category, `all` for all together.
        undrafted: share of the proposals of synthetic acceptance that were left empty, because rounding had made another text of the
            recorded one; None without such drafts.
        samples: every group of prompts, as it was measured.
        left_out: peers that could not be measured, and why.
        too_long: ids of prompts that don't fit.
        too_few: ids of prompts at the end that were too few for another group.
        slow_targets: a sentence for every model that did not run natively.
        interrupted: whether Ctrl-C ended it early; then the samples are those made until then.
    """

    date: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    rows: Sequence[Row]
    ratios: Mapping[str, Ratio]
    ratios_by_category: Mapping[str, Mapping[str, Ratio]]
    step_times: Mapping[str, StepTimes]
    drafts: Mapping[str, Mapping[str, DraftReport]]
    undrafted: float | None
    samples: Sequence[Sample]
    left_out: Mapping[str, str]
    too_long: Sequence[str]
    too_few: Sequence[str]
    slow_targets: Sequence[str]
    interrupted: bool

    @property
    def systems(self) -> list[str]:
        """Names, in the order of the tables."""
        return list(dict.fromkeys(row.system for row in self.rows))


def missing_batches(results: Sequence[BenchResult]) -> list[int]:
    """The batch sizes that an interrupted benchmark did not come to."""
    measured = [result.settings["batch"] for result in results]
    return [batch for batch in results[0].settings["batches"] if batch not in measured]


def all_versions(results: Sequence[BenchResult]) -> dict[str, str]:
    """Of what ran for any batch size."""
    return {name: version for result in results for name, version in result.versions.items()}
