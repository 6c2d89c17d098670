"""From samples to rows and ratios."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import System
from flexspec.bench.statistics import Ratio, paired_ratio
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
        prefill_s: mean seconds to the first token.
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
    categories = list(dict.fromkeys(sample.prompt.category for sample in samples))
    groups = [(ALL, list(samples))]
    if len(categories) > 1:
        groups += [(category, [sample for sample in samples if sample.prompt.category == category]) for category in categories]
    return [_row(system, category, group) for category, group in groups for system in systems]


def make_ratios(systems: Sequence[System], samples: Sequence[Sample]) -> dict[str, Ratio]:
    """Paired ratios of decode speed: each of ours to every peer, and speculative to plain.

    Prompts that either system answered with its first tokens alone have no decode speed and are left out of that ratio.
    """
    names = [system.name for system in systems]
    peers = [name for name in names if name not in (PLAIN, SPECULATIVE)]
    pairs = [(SPECULATIVE, PLAIN)] + [(ours, peer) for peer in peers for ours in (PLAIN, SPECULATIVE)]
    ratios: dict[str, Ratio] = {}
    for ours, other in pairs:
        if ours not in names:
            continue
        speeds = [(sample.measurements[ours].tokens_per_s, sample.measurements[other].tokens_per_s) for sample in samples]
        both = [(a, b) for a, b in speeds if a > 0 and b > 0]
        if both:
            ratios[f"{ours}/{other}"] = paired_ratio([a for a, _ in both], [b for _, b in both])
    return ratios


def _row(system: System, category: str, samples: Sequence[Sample]) -> Row:
    measurements = [sample.measurements[system.name] for sample in samples]
    seconds = sum(one.decode_s for one in measurements if one.decode_tokens)
    new_tokens = sum(one.new_tokens for one in measurements)
    return Row(
        system=system.name,
        drafters=list(system.drafters),
        tree=tree_as_json(system.tree),
        category=category,
        tokens_per_s=sum(one.decode_tokens for one in measurements) / seconds if seconds else 0.0,
        tokens_per_step=new_tokens / sum(one.steps for one in measurements),
        prompts=len(measurements),
        new_tokens=new_tokens,
        prefill_s=sum(one.prefill_s for one in measurements) / len(measurements),
    )
