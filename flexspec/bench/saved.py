"""Results of earlier benchmarks, as far as comparisons need them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from flexspec.bench.measurement import Measurement
from flexspec.bench.report import ALL, PLAIN
from flexspec.bench.result import FORMAT, FORMAT_VERSION
from flexspec.errors import UsageError
from flexspec.tree_shape import parse_tree

COMPARED = ("model", "dtype", "temperature", "top_p", "max_tokens", "verifier", "repeat", "synthetic_acceptance", "batch")
"""Settings that two benchmarks may differ in."""
PromptKey = tuple[tuple[str, str], ...]
"""The prompts of a group, each by id and digest of its tokens."""


@dataclass(frozen=True, kw_only=True)
class SavedPart:
    """What was measured with one batch size.

    Attributes:
        settings: what was asked for, as far as `COMPARED` names it.
        machine: what it ran on.
        versions: of what ran.
        drafting: what each system drafts with and its tree, in words; the systems are in the order of the tables.
        groups: by their prompts, what every system took.
    """

    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    drafting: Mapping[str, str]
    groups: Mapping[PromptKey, Mapping[str, Measurement]]


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A whole benchmark.

    Attributes:
        name: what to call it, for example its file.
        parts: by batch size; at least one.
    """

    name: str
    parts: Mapping[int, SavedPart]

    @property
    def first(self) -> SavedPart:
        """Any part: what is asked for and what it runs on is the same in all."""
        return next(iter(self.parts.values()))


def load_run(path: Path, option: str) -> SavedRun:
    """Read a file that `flexspec bench --save` wrote.

    Args:
        path: of the file.
        option: that it was given with.

    Raises:
        UsageError: if it can't be read, or is anything else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{option} {str(path)!r} can't be read ({error.strerror}): give a file that `flexspec bench --save` wrote"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} {str(path)!r} is not JSON ({error}): give a file that `flexspec bench --save` wrote") from None
    return read_run(content, str(path), option)


def read_run(content: Any, name: str, option: str) -> SavedRun:
    """Read what `results_as_json` gives.

    Args:
        content: that.
        name: what to call it.
        option: that it was given with, for messages.

    Raises:
        UsageError: if it is anything else, of another version, or damaged.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{option} {name!r} is not a benchmark's result: give a file that `flexspec bench --save` wrote")
    if content.get("version") != FORMAT_VERSION:
        raise UsageError(
            f"{option} {name!r} is a result of version {content.get('version')!r}, and this flexspec reads version {FORMAT_VERSION}: "
            "measure anew"
        )
    try:
        parts = [_read_part(part) for part in content["results"]]
        if not parts:
            raise ValueError("no results")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{option} {name!r} is a damaged benchmark's result ({type(error).__name__}: {error}): measure anew") from None
    return SavedRun(name=name, parts={part.settings["batch"]: part for part in parts})


def _read_part(part: Mapping[str, Any]) -> SavedPart:
    drafting = {str(row["system"]): _drafting(row["drafters"], row["tree"]) for row in part["rows"] if row["category"] == ALL}
    groups = {_read_key(sample["prompts"]): _read_measurements(sample["measurements"]) for sample in part["samples"]}
    if PLAIN not in drafting or any(set(group) != set(drafting) for group in groups.values()):
        raise ValueError("not every system was measured on every prompt")
    settings = {name: part["settings"][name] for name in COMPARED}
    if not isinstance(settings["model"], str) or not isinstance(settings["batch"], int):
        raise ValueError("settings of other types")
    return SavedPart(settings=settings, machine=dict(part["machine"]), versions=dict(part["versions"]), drafting=drafting, groups=groups)


def _read_key(prompts: Sequence[Mapping[str, Any]]) -> PromptKey:
    return tuple((str(prompt["id"]), str(prompt["digest"])) for prompt in prompts)


def _read_measurements(measurements: Mapping[str, Mapping[str, Any]]) -> dict[str, Measurement]:
    return {str(system): _read_measurement(one) for system, one in measurements.items()}


def _read_measurement(one: Mapping[str, Any]) -> Measurement:
    counts = [int(one[name]) for name in ("new_tokens", "decode_tokens", "steps")]
    seconds = [float(one[name]) for name in ("prefill_s", "decode_s")]
    if min(counts) < 0 or counts[2] < 1 or (counts[1] and not 0 < seconds[1] < inf):
        raise ValueError(f"a measurement of {counts} tokens and steps in {seconds} s")
    return Measurement(new_tokens=counts[0], decode_tokens=counts[1], steps=counts[2], prefill_s=seconds[0], decode_s=seconds[1])


def _drafting(drafters: Sequence[str], tree: Any) -> str:
    return f"{' and '.join(drafters)}, tree {parse_tree(tree)}" if drafters else "no drafts"
