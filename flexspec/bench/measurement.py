"""What every measured system offers, and what one run of it gives."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

from flexspec.runtime.draft_counts import DraftCounts
from flexspec.tree_shape import Tree


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What all systems are asked for alike.

    Attributes:
        max_tokens: most new tokens of a prompt; an end-of-sequence token ends it earlier.
        temperature: 0 is greedy.
        top_p: 1 keeps all tokens.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One group of prompts completed by one system; a group is one prompt unless several run at a time.

    Attributes:
        new_tokens: tokens generated, end-of-sequence tokens included.
        decode_tokens: those of them that came after the pass with which every prompt of the group had its first token.
        steps: passes of the large model that gave tokens, added up over the prompts, the ones that ended prefill included.
        prefill_s: seconds until every prompt had its first token.
        decode_s: seconds from there to the last token of all.
        drafts: what became of the drafted nodes; empty for systems that do not draft, or do not tell.
    """

    new_tokens: int
    decode_tokens: int
    steps: int
    prefill_s: float
    decode_s: float
    drafts: DraftCounts = field(default_factory=DraftCounts, compare=False)

    @property
    def tokens_per_s(self) -> float:
        """Decode tokens a second; 0 if there are none."""
        return self.decode_tokens / self.decode_s if self.decode_tokens else 0.0


def pooled_tokens_per_s(measurements: Sequence[Measurement]) -> float:
    """Decode tokens of all over their decode seconds; 0 if there are none."""
    seconds = sum(one.decode_s for one in measurements if one.decode_tokens)
    return sum(one.decode_tokens for one in measurements) / seconds if seconds else 0.0


def pooled_tokens_per_step(measurements: Sequence[Measurement]) -> float:
    """New tokens of all over their passes of the large model, those that end prefill included."""
    return sum(one.new_tokens for one in measurements) / sum(one.steps for one in measurements)


def median_run(runs: Sequence[Measurement]) -> Measurement:
    """The run of median decode speed, the slower one of the two in the middle, with the median seconds of prefill."""
    middle = sorted(runs, key=lambda run: run.tokens_per_s)[(len(runs) - 1) // 2]
    return replace(middle, prefill_s=median(run.prefill_s for run in runs))


class System(Protocol):
    """Something that completes prompts.

    Attributes:
        name: as reports call it.
        drafters: what it drafts with, by name.
        tree: its token tree; none for plain decoding.
    """

    name: str
    drafters: tuple[str, ...]
    tree: Tree

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """Complete a group of prompts of token ids, all at once; above temperature 0 they draw with `seed` and the numbers after it."""
        ...
