"""Two benchmarks of one model beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from flexspec.bench.measurement import Measurement
from flexspec.bench.report import PLAIN
from flexspec.bench.saved import SavedPart, SavedRun
from flexspec.bench.statistics import Ratio, paired_ratio
from flexspec.errors import UsageError

_NOTED = ("model", "dtype", "max_tokens", "top_p", "verifier", "repeat", "synthetic_acceptance")
_OF_MACHINE = ("cpu", "cores", "threads", "target")


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


def check_comparable(model: str, temperature: float, other: SavedRun) -> None:
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


def compare_runs(one: SavedRun, other: SavedRun) -> RunComparison:
    """Compare what the two benchmarks have in common: batch sizes, prompts, systems.

    Machines differ, so what is compared is the speed-up over plain decoding on the same machine, paired by prompt.

    Raises:
        UsageError: as `check_comparable`, and if they have no prompts in common.
    """
    check_comparable(one.first.settings["model"], one.first.settings["temperature"], other)
    systems: list[ComparedSystem] = []
    for batch in (batch for batch in one.parts if batch in other.parts):
        systems += _compare_parts(batch, one.parts[batch], other.parts[batch])
    if not systems:
        raise UsageError(
            f"{one.name!r} and {other.name!r} have no prompts in common that ran with the same batch size: give the same --prompts, "
            "--limit and --batch"
        )
    return RunComparison(names=(one.name, other.name), systems=systems, notes=_notes(one, other))


def _compare_parts(batch: int, one: SavedPart, other: SavedPart) -> list[ComparedSystem]:
    keys = [key for key in one.groups if key in other.groups]
    if not keys:
        return []
    groups = [(one.groups[key], other.groups[key]) for key in keys]
    prompts = sum(map(len, keys))
    return [_compare_system(batch, system, prompts, groups) for system in one.drafting if system in other.drafting]


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
        tokens_per_s=(_tokens_per_s(ours), _tokens_per_s(theirs)),
        tokens_per_step=(_tokens_per_step(ours), _tokens_per_step(theirs)),
        speedup=(_mean([a for a, _ in paired]), _mean([b for _, b in paired])) if paired else None,
        ratio=paired_ratio([a for a, _ in paired], [b for _, b in paired]) if paired else None,
    )


def _speedup(group: Mapping[str, Measurement], system: str) -> float:
    """Over plain; 0 if either has no decode speed."""
    plain = group[PLAIN].tokens_per_s
    return group[system].tokens_per_s / plain if plain else 0.0


def _mean(speedups: Sequence[float]) -> float:
    return paired_ratio(speedups, [1.0] * len(speedups)).value


def _tokens_per_s(measurements: Sequence[Measurement]) -> float:
    seconds = sum(one.decode_s for one in measurements if one.decode_tokens)
    return sum(one.decode_tokens for one in measurements) / seconds if seconds else 0.0


def _tokens_per_step(measurements: Sequence[Measurement]) -> float:
    return sum(one.new_tokens for one in measurements) / sum(one.steps for one in measurements)


def _notes(one: SavedRun, other: SavedRun) -> list[str]:
    ours, theirs = one.first, other.first
    notes = [_differs(name, ours.settings[name], theirs.settings[name]) for name in _NOTED if ours.settings[name] != theirs.settings[name]]
    machine = [name for name in _OF_MACHINE if ours.machine.get(name) != theirs.machine.get(name)]
    if machine:
        notes += [_differs(name, ours.machine.get(name), theirs.machine.get(name)) for name in machine]
        notes.append("The machines differ: compare the speed-ups over plain decoding, not tokens/s.")
    versions = [name for name in ours.versions if ours.versions[name] != theirs.versions.get(name, ours.versions[name])]
    notes += [_differs(name, ours.versions[name], theirs.versions[name]) for name in versions]
    for system in (system for system in ours.drafting if system in theirs.drafting):
        if ours.drafting[system] != theirs.drafting[system]:
            notes.append(_differs(system, ours.drafting[system], theirs.drafting[system]))
    for name, run, rival in ((one.name, one, other), (other.name, other, one)):
        batches = [str(batch) for batch in run.parts if batch not in rival.parts]
        systems = [system for system in run.first.drafting if system not in rival.first.drafting]
        notes += [f"only in {name}: batch {', '.join(batches)}"] if batches else []
        notes += [f"only in {name}: {', '.join(systems)}"] if systems else []
    return notes


def _differs(name: str, ours: Any, theirs: Any) -> str:
    return f"{name}: {ours} here; {theirs} there"
