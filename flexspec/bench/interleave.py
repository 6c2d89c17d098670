"""Running all systems prompt by prompt, so that a machine that slows down slows all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flexspec.bench.measurement import Measurement, System, median_run
from flexspec.bench.prompt_groups import PromptGroup, PromptKey

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One group of prompts on every system.

    Attributes:
        prompts: which.
        category: of the group.
        measurements: by the system's name.
    """

    prompts: tuple[PromptKey, ...]
    category: str
    measurements: Mapping[str, Measurement]


def warm_up(systems: Sequence[System], groups: Sequence[PromptGroup], say: Say) -> None:
    """Run some groups through every system, unmeasured."""
    for system in systems:
        say(f"warming up {system.name}")
        for group in groups:
            system.run(group.token_ids, group.seed)


def interleave(systems: Sequence[System], groups: Sequence[PromptGroup], say: Say, *, repeat: int = 1) -> tuple[list[Sample], bool]:
    """Run every group on every system in turn; who begins moves on by one from run to run.

    Args:
        systems: warmed up.
        groups: in this order.
        say: is told what runs.
        repeat: runs of each group, of which the one of median speed counts; of an even number, the slower of the middle two.

    Returns:
        a sample a group, and whether Ctrl-C ended it early.

    Raises:
        KeyboardInterrupt: on Ctrl-C during the first group.
    """
    samples: list[Sample] = []
    try:
        for number, group in enumerate(groups):
            runs: dict[str, list[Measurement]] = {system.name: [] for system in systems}
            for turn in range(repeat):
                run = f", run {turn + 1} of {repeat}" if repeat > 1 else ""
                first = (number + turn) % len(systems)
                for system in [*systems[first:], *systems[:first]]:
                    say(f"{_which(group, number, len(groups))}{run}: {system.name}")
                    runs[system.name].append(system.run(group.token_ids, group.seed))
            measurements = {name: median_run(each) for name, each in runs.items()}
            samples.append(
                Sample(prompts=tuple(prompt.key for prompt in group.prompts), category=group.category, measurements=measurements)
            )
    except KeyboardInterrupt:
        if not samples:
            raise
        return samples, True
    return samples, False


def _which(group: PromptGroup, number: int, count: int) -> str:
    return f"{'prompt' if len(group.prompts) == 1 else 'group'} {number + 1} of {count}"
