"""One test of a check."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.checking.equality import Difference
from flexspec.runtime.output import Output


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One test.

    Attributes:
        test: `greedy`, `coupled` or `mss`.
        prompt: id of its prompt.
        lossless: whether speculation passed.
        detail: what was seen, in words.
        drafted: tokens drafted during it.
        accepted: how many of them were accepted.
        difference: where the texts part; None if they don't, and for `mss`.
        p_value: of the chi-square test; None for the others.
    """

    test: str
    prompt: str
    lossless: bool
    detail: str
    drafted: int
    accepted: int
    difference: Difference | None = None
    p_value: float | None = None


def count_drafts(outputs: Sequence[Output]) -> tuple[int, int]:
    """Tokens drafted for all outputs, and how many of them were accepted."""
    return sum(output.stats.drafted for output in outputs), sum(output.stats.accepted for output in outputs)
