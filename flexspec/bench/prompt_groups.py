"""Encoded prompts, and the groups in which they run."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import NamedTuple

MIXED = "mixed"


class PromptKey(NamedTuple):
    """Tells a prompt from all others, in other files and runs too.

    Attributes:
        id: its name, which other files may give to other prompts.
        digest: of its token ids.
    """

    id: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class BenchPrompt:
    """A prompt as every system gets it."""

    id: str
    category: str
    token_ids: Sequence[int]

    @property
    def key(self) -> PromptKey:
        """Which prompt it is."""
        return PromptKey(self.id, hashlib.sha256(",".join(map(str, self.token_ids)).encode()).hexdigest()[:16])


@dataclass(frozen=True, kw_only=True)
class PromptGroup:
    """Prompts that run at a time.

    Attributes:
        prompts: at least one.
        seed: of the first one; the others have those that follow.
    """

    prompts: tuple[BenchPrompt, ...]
    seed: int

    @property
    def category(self) -> str:
        """Of its prompts, `mixed` if there are several."""
        categories = {prompt.category for prompt in self.prompts}
        return categories.pop() if len(categories) == 1 else MIXED

    @property
    def token_ids(self) -> list[Sequence[int]]:
        """Of each prompt."""
        return [prompt.token_ids for prompt in self.prompts]


def full_groups(prompts: Sequence[BenchPrompt], size: int) -> tuple[list[PromptGroup], list[str]]:
    """Groups of `size` prompts in their order, and the ids of those at the end that are too few for another."""
    count = len(prompts) // size
    groups = [PromptGroup(prompts=tuple(prompts[n * size : (n + 1) * size]), seed=n * size) for n in range(count)]
    return groups, [prompt.id for prompt in prompts[count * size :]]


def warm_up_groups(prompts: Sequence[BenchPrompt], size: int, count: int) -> list[PromptGroup]:
    """`count` groups of `size` prompts, which are taken over again where there are too few."""
    endless = cycle(prompts)
    return [PromptGroup(prompts=tuple(islice(endless, size)), seed=0) for _ in range(count)]
