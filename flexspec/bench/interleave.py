"""Running all systems prompt by prompt, so that a machine that slows down slows all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexspec.bench.measurement import Measurement, System

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class BenchPrompt:
    """A prompt as every system gets it."""

    id: str
    category: str
    token_ids: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt on every system.

    Attributes:
        prompt: which.
        measurements: by the system's name.
    """

    prompt: BenchPrompt
    measurements: dict[str, Measurement]


def warm_up(systems: Sequence[System], prompt: BenchPrompt, say: Say) -> None:
    """Run one prompt through every system, unmeasured."""
    for system in systems:
        say(f"warming up {system.name}")
        system.run(prompt.token_ids, seed=0)


def interleave(systems: Sequence[System], prompts: Sequence[BenchPrompt], say: Say) -> list[Sample]:
    """Run every prompt on every system in turn; who begins moves on by one from prompt to prompt.

    Args:
        systems: warmed up.
        prompts: in this order.
        say: is told what runs.
    """
    samples = []
    for number, prompt in enumerate(prompts):
        first = number % len(systems)
        measurements: dict[str, Measurement] = {}
        for system in [*systems[first:], *systems[:first]]:
            say(f"prompt {number + 1} of {len(prompts)}: {system.name}")
            measurements[system.name] = system.run(prompt.token_ids, seed=number)
        samples.append(Sample(prompt=prompt, measurements=measurements))
    return samples
