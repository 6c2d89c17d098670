"""A benchmark's result without a benchmark: four systems on two categories of prompts."""

from typing import Any

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import Measurement
from flexspec.bench.prompt_groups import PromptKey
from flexspec.bench.report import ALL, Row
from flexspec.bench.result import BenchResult
from flexspec.bench.statistics import Ratio
from flexspec.bench.step_times import StepTimes
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.stats import PHASES, Profile
from flexspec.runtime.tree_builder import TreeBuilder

PATH = "./ssms/a|b"
"""A draft model's folder, named as no table likes it."""
CATEGORIES = (ALL, "qa", "[/] *maths* $x$")
_DRAFTERS = {"flexspec": ["suffix", PATH], "flexspec-plain": [], PATH: [PATH], "hf": []}
_SPEEDS = {"flexspec": 15.0, "flexspec-plain": 10.0, PATH: 12.5, "hf": 5.0}
_LIMITS = {"depth": 16, "branch": 3, "budget": 24}


def chains(**drafted: int) -> DraftReport:
    """A report of one step: drafters' chains of equal tokens, as long as told, of which the longest one was accepted."""
    proposals = []
    for name, length in drafted.items():
        builder = TreeBuilder(1)
        node = 0
        for token in range(length):
            node = builder.add(node, token)
        proposals.append((name, builder.build()))
    counts = DraftCounts()
    longest = max(drafted.values())
    counts.record(merge_trees(1, proposals), list(range(longest + 1)), longest + 1)
    return DraftReport.of(counts)


def sample(number: int, category: str) -> Sample:
    """The prompt of this number on all systems, each at its own speed."""
    measurements = {
        system: Measurement(new_tokens=9, decode_tokens=8, steps=4, prefill_s=0.1, decode_s=8 / speed) for system, speed in _SPEEDS.items()
    }
    return Sample(prompts=(PromptKey(str(number), f"digest {number}"),), category=category, measurements=measurements)


def bench_result(**other: Any) -> BenchResult:
    """One batch size; `flexspec` is 1.5 times as fast as plain decoding, hf half as fast."""
    ratios = {
        "flexspec/flexspec-plain": Ratio(value=1.5, low=1.25, high=2.0),
        f"flexspec/{PATH}": Ratio(value=1.2, low=1.1, high=1.3),
        f"{PATH}/flexspec-plain": Ratio(value=1.25, low=1.2, high=1.3),
        "flexspec-plain/hf": Ratio(value=2.0, low=1.6, high=2.5),
        "flexspec/hf": Ratio(value=3.0, low=None, high=None),
    }
    fields: dict[str, Any] = {
        "date": "2030-01-02T03:04:05+00:00",
        "machine": {"cpu": "CPU", "cores": 2, "threads": 2, "memory_bytes": 2**33, "system": "Linux"}
        | {"target": "cpu-native", "row_invariance": "holds"},
        "versions": {"python": "3.12"},
        "settings": {
            "model": "tiny",
            "dtype": "float32",
            "drafters": ["suffix", PATH],
            "verifier": "greedy",
            "tree": _LIMITS,
            "also": [PATH],
        }
        | {
            "synthetic_acceptance": None,
            "warm_up": ["9"],
            "max_tokens": 8,
            "temperature": 0.0,
            "top_p": 1.0,
            "repeat": 1,
            "batch": 1,
            "batches": [1],
        },
        "rows": [
            Row(
                system=system,
                drafters=drafters,
                tree=_LIMITS if drafters else [],
                category=category,
                tokens_per_s=10.0,
                tokens_per_step=1.0 + len(drafters),
                prompts=2 if category == ALL else 1,
                new_tokens=16,
                prefill_s=0.1,
            )
            for category in CATEGORIES
            for system, drafters in _DRAFTERS.items()
        ],
        "ratios": ratios,
        "ratios_by_category": {category: ratios for category in CATEGORIES[1:]},
        "step_times": {
            system: StepTimes.of(Profile(steps=4, seconds=dict.fromkeys(PHASES, 0.004)), drafters_run_models=system == "flexspec")
            for system in list(_DRAFTERS)[:3]
        },
        "drafts": {
            "flexspec": {category: chains(suffix=3, **{PATH: 1}) for category in CATEGORIES},
            PATH: {category: chains(**{PATH: 2}) for category in CATEGORIES},
        },
        "undrafted": None,
        "samples": [sample(number, category) for number, category in enumerate(CATEGORIES[1:])],
        "left_out": {"openvino": "it is not installed"},
        "too_long": ["17"],
        "too_few": [],
        "slow_targets": [],
        "interrupted": False,
    }
    return BenchResult(**fields | other)
