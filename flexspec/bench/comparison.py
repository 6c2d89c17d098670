"""Two benchmarks of one model beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import geometric_mean
from typing import Any

from flexspec.bench.measurement import Measurement, pooled_tokens_per_s, pooled_tokens_per_step
from flexspec.bench.report import ALL, PLAIN
from flexspec.bench.result import BenchResult
from flexspec.bench.statistics import Ratio, paired_ratio
from flexspec.errors import UsageError
from flexspec.tree_shape import parse_tree

_NOTED = ("model", "dtype", "max_tokens", "top_p", "verifier", "repeat", "synthetic_acceptance")
_OF_MACHINE = ("cpu", "cores", "threads", "target")


@dataclass(frozen=True, kw_only=True)
class NamedRun:
    """A whole benchmark.

    Attributes:
        name: what to call it, for example its file.
        results: one a batch size; at least one.
    """

    name: str
    results: Sequence[BenchResult]

    @property
    def first(self) -> BenchResult:
        """What is asked for and what it runs on is the same in all."""
        return self.results[0]

    @property
    def by_batch(self) -> dict[int, BenchResult]:
        """The results by batch size."""
        return {result.settings["batch"]: result for result in self.results}


@dataclass(frozen=True, kw_only=True)
class ComparedSystem:
    """One system of both benchmarks, on the prompts that both ran with one batch size.

    Attributes:
        batch: prompts that ran at a time.
        system: its name.
        prompts: how many.
        tokens_per_s: decode tokens over decode seconds, of the one benchmark and of the other.
        tokens_per_step: new tokens over passes of the large model, likewise.
        speedup: geometric mean of the decode speed over plain decoding's, likewise; None for plain itself, and where nothing is paired.
        ratio: the first speed-up over the second one, paired by prompt; None likewise.
    """

    batch: int
    system: str
    prompts: int
    tokens_per_s: tuple[float, float]
    tokens_per_step: tuple[float, float]
    speedup: tuple[float, float] | None
    ratio: Ratio | None


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """What came out.

    Attributes:
        names: of the two benchmarks.
        systems: by batch size and system, those of both.
        notes: what differs otherwise, and what only one of them has.
    """

    names: tuple[str, str]
    systems: Sequence[ComparedSystem]
    notes: Sequence[str]


def check_comparable(model: str, temperature: float, other: NamedRun) -> None:
    """Refuse to compare texts that have nothing to do with each other.

    Args:
        model: of the one benchmark.
        temperature: likewise.
        other: the other one.

    Raises:
        UsageError: if the other one measured another model, or at another temperature; of paths only the last part counts.
    """
    settings = other.first.settings
    if PurePath(settings["model"]).name != PurePath(model).name:
        raise UsageError(f"{other.name!r} measured {settings['model']}, not {model}: compare benchmarks of one model")
    if settings["temperature"] != temperature:
        raise UsageError(
            f"{other.name!r} was measured at temperature {settings['temperature']:g}, not {temperature:g}: compare benchmarks of one "
            "temperature"
        )


def compare_runs(one: NamedRun, other: NamedRun) -> RunComparison:
    """Compare what the two benchmarks have in common: batch sizes, prompts, systems.

    Machines differ, so what is compared is the speed-up over plain decoding on the same machine, paired by prompt.

    Raises:
        UsageError: as `check_comparable`, and if they have no prompts in common.
    """
    check_comparable(one.first.settings["model"], one.first.settings["temperature"], other)
    systems: list[ComparedSystem] = []
    for batch, result in one.by_batch.items():
        if batch in other.by_batch:
            systems += _compare_results(batch, result, other.by_batch[batch])
    if not systems:
        raise UsageError(
            f"{one.name!r} and {other.name!r} have no prompts in common that ran with the same batch size: give the same --prompts, "
            "--limit and --batch"
        )
    return RunComparison(names=(one.name, other.name), systems=systems, notes=_notes(one, other))


def _compare_results(batch: int, one: BenchResult, other: BenchResult) -> list[ComparedSystem]:
    ours, theirs = ({sample.prompts: sample.measurements for sample in result.samples} for result in (one, other))
    keys = [key for key in ours if key in theirs]
    if not keys:
        return []
    groups = [(ours[key], theirs[key]) for key in keys]
    prompts = sum(map(len, keys))
    return [_compare_system(batch, system, prompts, groups) for system in one.systems if system in other.systems]


def _compare_system(
    batch: int, system: str, prompts: int, groups: Sequence[tuple[Mapping[str, Measurement], Mapping[str, Measurement]]]
) -> ComparedSystem:
    ours, theirs = [group[system] for group, _ in groups], [group[system] for _, group in groups]
    speedups = [(_speedup(first, system), _speedup(second, system)) for first, second in groups]
    both = [(a, b) for a, b in speedups if a > 0 and b > 0]
    paired = both if system != PLAIN else []
    return ComparedSystem(
        batch=batch,
        system=system,
        prompts=prompts,
        tokens_per_s=(pooled_tokens_per_s(ours), pooled_tokens_per_s(theirs)),
        tokens_per_step=(pooled_tokens_per_step(ours), pooled_tokens_per_step(theirs)),
        speedup=(geometric_mean(a for a, _ in paired), geometric_mean(b for _, b in paired)) if paired else None,
        ratio=paired_ratio([a for a, _ in paired], [b for _, b in paired]) if paired else None,
    )


def _speedup(group: Mapping[str, Measurement], system: str) -> float:
    """Over plain; 0 if either has no decode speed."""
    plain = group[PLAIN].tokens_per_s
    return group[system].tokens_per_s / plain if plain else 0.0


def _notes(one: NamedRun, other: NamedRun) -> list[str]:
    ours, theirs = one.first, other.first
    notes = [_differs(name, ours.settings[name], theirs.settings[name]) for name in _NOTED if ours.settings[name] != theirs.settings[name]]
    machine = [name for name in _OF_MACHINE if ours.machine[name] != theirs.machine[name]]
    if machine:
        notes += [_differs(name, ours.machine[name], theirs.machine[name]) for name in machine]
        notes.append("The machines differ: compare the speed-ups over plain decoding, not tokens/s.")
    versions = [name for name in ours.versions if ours.versions[name] != theirs.versions.get(name, ours.versions[name])]
    notes += [_differs(name, ours.versions[name], theirs.versions[name]) for name in versions]
    drafting, their_drafting = _drafting(ours), _drafting(theirs)
    for system in (system for system in drafting if system in their_drafting):
        if drafting[system] != their_drafting[system]:
            notes.append(_differs(system, drafting[system], their_drafting[system]))
    for run, rival in ((one, other), (other, one)):
        batches = [str(batch) for batch in run.by_batch if batch not in rival.by_batch]
        systems = [system for system in run.first.systems if system not in rival.first.systems]
        notes += [f"only in {run.name}: batch {', '.join(batches)}"] if batches else []
        notes += [f"only in {run.name}: {', '.join(systems)}"] if systems else []
    return notes


def _drafting(result: BenchResult) -> dict[str, str]:
    """What each system drafts with, and its tree, in words."""
    return {
        row.system: f"{' and '.join(row.drafters)}, tree {parse_tree(row.tree)}" if row.drafters else "no drafts"
        for row in result.rows
        if row.category == ALL
    }


def _differs(name: str, ours: Any, theirs: Any) -> str:
    return f"{name}: {ours} here; {theirs} there"
