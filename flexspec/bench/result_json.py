"""A benchmark's results as JSON, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import inf
from types import NoneType
from typing import Any

from flexspec.bench.draft_report import DraftReport
from flexspec.bench.interleave import Sample
from flexspec.bench.measurement import Measurement
from flexspec.bench.prompt_groups import PromptKey
from flexspec.bench.report import ALL, PLAIN, Row
from flexspec.bench.result import BenchResult
from flexspec.bench.statistics import Ratio
from flexspec.bench.step_times import StepTimes
from flexspec.tree_shape import parse_tree

FORMAT = "flexspec-bench"
FORMAT_VERSION = 1

_NUMBER = (int, float)
_SETTINGS: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "dtype": str,
    "drafters": list,
    "verifier": str,
    "tree": (list, dict),
    "also": list,
    "synthetic_acceptance": (*_NUMBER, NoneType),
    "max_tokens": int,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "batch": int,
    "batches": list,
    "repeat": int,
    "warm_up": list,
}
_MACHINE: Mapping[str, type | tuple[type, ...]] = {
    "cpu": str,
    "cores": int,
    "threads": int,
    "memory_bytes": int,
    "system": str,
    "target": str,
    "row_invariance": str,
}


def results_to_json(results: Sequence[BenchResult]) -> dict[str, Any]:
    """What `flexspec bench --save` writes: one result a batch size."""
    return {"format": FORMAT, "version": FORMAT_VERSION, "results": [_result_to_json(result) for result in results]}


def results_from_json(content: Mapping[str, Any]) -> list[BenchResult]:
    """What `results_to_json` got.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: if something is missing or not what it should be.
    """
    results = [_result_from_json(result) for result in content["results"]]
    if not results:
        raise ValueError("no results")
    return results


def _result_to_json(result: BenchResult) -> dict[str, Any]:
    return {
        "date": result.date,
        "machine": result.machine,
        "versions": result.versions,
        "settings": result.settings,
        "interrupted": result.interrupted,
        "rows": [asdict(row) for row in result.rows],
        "ratios": _ratios_to_json(result.ratios),
        "ratios_by_category": {category: _ratios_to_json(ratios) for category, ratios in result.ratios_by_category.items()},
        "step_ms": {name: times.to_json() for name, times in result.step_times.items()},
        "drafts": {name: {category: one.to_json() for category, one in reports.items()} for name, reports in result.drafts.items()},
        "undrafted": result.undrafted,
        "samples": [_sample_to_json(sample) for sample in result.samples],
        "left_out": {"peers": result.left_out, "too_long": list(result.too_long), "too_few": list(result.too_few)},
        "slow_targets": list(result.slow_targets),
    }


def _result_from_json(content: Mapping[str, Any]) -> BenchResult:
    settings, left_out = _typed(content["settings"], _SETTINGS), content["left_out"]
    parse_tree(settings["tree"])
    result = BenchResult(
        date=str(content["date"]),
        machine=_typed(content["machine"], _MACHINE),
        versions=_texts(content["versions"]),
        settings=settings,
        rows=[_row_from_json(row) for row in content["rows"]],
        ratios=_ratios_from_json(content["ratios"]),
        ratios_by_category={str(category): _ratios_from_json(ratios) for category, ratios in content["ratios_by_category"].items()},
        step_times={str(name): StepTimes.from_json(times) for name, times in content["step_ms"].items()},
        drafts={
            str(name): {str(category): DraftReport.from_json(one) for category, one in reports.items()}
            for name, reports in content["drafts"].items()
        },
        undrafted=None if content["undrafted"] is None else float(content["undrafted"]),
        samples=[_sample_from_json(sample) for sample in content["samples"]],
        left_out=_texts(left_out["peers"]),
        too_long=[str(prompt) for prompt in left_out["too_long"]],
        too_few=[str(prompt) for prompt in left_out["too_few"]],
        slow_targets=[str(sentence) for sentence in content["slow_targets"]],
        interrupted=bool(content["interrupted"]),
    )
    _check_names(result)
    return result


def _check_names(result: BenchResult) -> None:
    systems = set(result.systems)
    if PLAIN not in systems or not result.samples or any(set(sample.measurements) != systems for sample in result.samples):
        raise ValueError("not every system was measured on every prompt")
    pairs = {f"{one}/{other}" for one in systems for other in systems}
    if not {*result.ratios, *(name for ratios in result.ratios_by_category.values() for name in ratios)} <= pairs:
        raise ValueError("ratios of systems that were not measured")
    if not {*result.step_times, *result.drafts} <= systems or any(ALL not in reports for reports in result.drafts.values()):
        raise ValueError("drafts or times of systems that were not measured")


def _typed(content: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    for name, allowed in types.items():
        if not isinstance(content[name], allowed):
            raise TypeError(f"{name} is {content[name]!r}")
    return dict(content)


def _texts(content: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(text) for name, text in content.items()}


def _row_from_json(content: Mapping[str, Any]) -> Row:
    parse_tree(content["tree"])
    return Row(
        system=str(content["system"]),
        drafters=[str(drafter) for drafter in content["drafters"]],
        tree=content["tree"],
        category=str(content["category"]),
        tokens_per_s=float(content["tokens_per_s"]),
        tokens_per_step=float(content["tokens_per_step"]),
        prompts=int(content["prompts"]),
        new_tokens=int(content["new_tokens"]),
        prefill_s=float(content["prefill_s"]),
    )


def _ratios_to_json(ratios: Mapping[str, Ratio]) -> dict[str, Any]:
    return {name: asdict(ratio) for name, ratio in ratios.items()}


def _ratios_from_json(content: Mapping[str, Any]) -> dict[str, Ratio]:
    return {str(name): _ratio_from_json(ratio) for name, ratio in content.items()}


def _ratio_from_json(content: Mapping[str, Any]) -> Ratio:
    value = float(content["value"])
    low, high = (None if content[end] is None else float(content[end]) for end in ("low", "high"))
    if any(end is not None and not 0 < end < inf for end in (value, low, high)):
        raise ValueError(f"a ratio of {value}, from {low} to {high}")
    return Ratio(value=value, low=low, high=high)


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    return {
        "prompts": [prompt._asdict() for prompt in sample.prompts],
        "category": sample.category,
        "measurements": {
            name: {one.name: getattr(measurement, one.name) for one in fields(measurement) if one.name != "drafts"}
            for name, measurement in sample.measurements.items()
        },
    }


def _sample_from_json(content: Mapping[str, Any]) -> Sample:
    return Sample(
        prompts=tuple(PromptKey(str(prompt["id"]), str(prompt["digest"])) for prompt in content["prompts"]),
        category=str(content["category"]),
        measurements={str(system): _measurement_from_json(one) for system, one in content["measurements"].items()},
    )


def _measurement_from_json(content: Mapping[str, Any]) -> Measurement:
    counts = [int(content[name]) for name in ("new_tokens", "decode_tokens", "steps")]
    seconds = [float(content[name]) for name in ("prefill_s", "decode_s")]
    if min(counts) < 0 or counts[2] < 1 or (counts[1] and not 0 < seconds[1] < inf):
        raise ValueError(f"a measurement of {counts} tokens and steps in {seconds} s")
    return Measurement(new_tokens=counts[0], decode_tokens=counts[1], steps=counts[2], prefill_s=seconds[0], decode_s=seconds[1])
