"""From samples to rows, ratios and counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import System, pooled_tokens_per_s, pooled_tokens_per_step
from flexspec.bench.statistics import Ratio, paired_ratio
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.strategy import tree_as_json

ALL = "all"
PLAIN = "flexspec-plain"
SPECULATIVE = "flexspec"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system on one category of prompts, or on all of them.

    Attributes:
        system: its name.
        drafters: what it drafts with.
        tree: widths, or limits, of its tree.
        category: of the prompts; `all` for all.
        tokens_per_s: decode tokens over decode seconds, prefill left out.
        tokens_per_step: new tokens over passes of the large model, the one that ends prefill included.
        prompts: how many.
        new_tokens: of all prompts.
        prefill_s: mean seconds to the first token, of groups to the first tokens of all.
    """

    system: str
    drafters: Sequence[str]
    tree: list[int] | dict[str, int]
    category: str
    tokens_per_s: float
    tokens_per_step: float
    prompts: int
    new_tokens: int
    prefill_s: float


def make_rows(systems: Sequence[System], samples: Sequence[Sample]) -> list[Row]:
    """For every system, one row over all prompts, and one a category if there are several."""
    groups = {ALL: list(samples)} | by_category(samples)
    return [_row(system, category, group) for category, group in groups.items() for system in systems]


def by_category(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples of each category; none if there is a single one."""
    categories: dict[str, list[Sample]] = {}
    for sample in samples:
        categories.setdefault(sample.category, []).append(sample)
    return categories if len(categories) > 1 else {}


def make_ratios(ours: Sequence[System], peers: Sequence[System], samples: Sequence[Sample]) -> dict[str, Ratio]:
    """Paired ratios of decode speed: the main system to plain and to our others, these to plain, and plain and the main one to peers.

    Groups that either system answered with its first tokens alone have no decode speed and are left out of that ratio.

    Args:
        ours: our systems, plain decoding among them; the main one may be missing.
        peers: other systems.
        samples: of all of them.

    Returns:
        ratios by `name/name`.
    """
    ratios: dict[str, Ratio] = {}
    for one, other in _pairs([system.name for system in ours], [system.name for system in peers]):
        speeds = [(sample.measurements[one].tokens_per_s, sample.measurements[other].tokens_per_s) for sample in samples]
        both = [(a, b) for a, b in speeds if a > 0 and b > 0]
        if both:
            ratios[f"{one}/{other}"] = paired_ratio([a for a, _ in both], [b for _, b in both])
    return ratios


def report_drafts(systems: Sequence[System], samples: Sequence[Sample]) -> dict[str, dict[str, DraftReport]]:
    """What became of the drafted nodes, by system and category, for all systems that tell; `all` is all categories together."""
    reports: dict[str, dict[str, DraftReport]] = {}
    for category, group in ({ALL: samples} | by_category(samples)).items():
        for system in systems:
            counts = DraftCounts()
            for sample in group:
                counts.add(sample.measurements[system.name].drafts)
            if counts.total().drafted:
                reports.setdefault(system.name, {})[category] = DraftReport.of(counts)
    return reports


def _pairs(ours: Sequence[str], peers: Sequence[str]) -> list[tuple[str, str]]:
    others = [name for name in ours if name not in (PLAIN, SPECULATIVE)]
    pairs = [(SPECULATIVE, PLAIN), *((SPECULATIVE, other) for other in others), *((other, PLAIN) for other in others)]
    pairs += [(one, peer) for peer in peers for one in (PLAIN, SPECULATIVE)]
    return [pair for pair in pairs if pair[0] in ours]


def _row(system: System, category: str, samples: Sequence[Sample]) -> Row:
    measurements = [sample.measurements[system.name] for sample in samples]
    return Row(
        system=system.name,
        drafters=list(system.drafters),
        tree=tree_as_json(system.tree),
        category=category,
        tokens_per_s=pooled_tokens_per_s(measurements),
        tokens_per_step=pooled_tokens_per_step(measurements),
        prompts=sum(len(sample.prompts) for sample in samples),
        new_tokens=sum(one.new_tokens for one in measurements),
        prefill_s=sum(one.prefill_s for one in measurements) / len(measurements),
    )
