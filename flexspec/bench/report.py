"""From samples to rows and ratios."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import System
from flexspec.bench.statistics import Ratio, paired_ratio
from flexspec.strategy import tree_as_json
from flexspec.tree_shape import Tree

ALL = "all"
PLAIN = "flexspec-plain"
SPECULATIVE = "flexspec"


def name_with_tree(tree: Tree) -> str:
    """What reports call flexspec with a tree that is not the main one."""
    shape = tree_as_json(tree)
    parts = [f"{name}={value}" for name, value in shape.items()] if isinstance(shape, dict) else map(str, shape)
    return f"{SPECULATIVE} {','.join(parts)}"


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
        categories.setdefault(sample.group.category, []).append(sample)
    return categories if len(categories) > 1 else {}


def make_ratios(systems: Sequence[System], samples: Sequence[Sample]) -> dict[str, Ratio]:
    """Paired ratios of decode speed: speculative to plain and to each other tree, those to plain, and ours to every peer.

    Groups that either system answered with its first tokens alone have no decode speed and are left out of that ratio.
    """
    ratios: dict[str, Ratio] = {}
    for ours, other in _pairs([system.name for system in systems]):
        speeds = [(sample.measurements[ours].tokens_per_s, sample.measurements[other].tokens_per_s) for sample in samples]
        both = [(a, b) for a, b in speeds if a > 0 and b > 0]
        if both:
            ratios[f"{ours}/{other}"] = paired_ratio([a for a, _ in both], [b for _, b in both])
    return ratios


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    trees = [name for name in names if name.startswith(f"{SPECULATIVE} ")]
    peers = [name for name in names if name not in (PLAIN, SPECULATIVE, *trees)]
    pairs = [(SPECULATIVE, PLAIN), *((SPECULATIVE, tree) for tree in trees), *((tree, PLAIN) for tree in trees)]
    pairs += [(ours, peer) for peer in peers for ours in (PLAIN, SPECULATIVE)]
    return [pair for pair in pairs if pair[0] in names]


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
        prompts=sum(len(sample.group.prompts) for sample in samples),
        new_tokens=new_tokens,
        prefill_s=sum(one.prefill_s for one in measurements) / len(measurements),
    )
