"""One test of a check."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.checking.equality import Difference
from flexspec.runtime.output import Output
from flexspec.tree_shape import Tree


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One test.

    Attributes:
        test: the verifier's name.
        tree: what was drafted.
        prompt: id of its prompt.
        lossless: whether speculation passed.
        detail: what was seen, in words.
        drafted: tokens drafted during it.
        accepted: how many of them were accepted.
        difference: where the texts part; None if they don't, and for tests of a distribution.
        p_value: of the chi-square test; None for tests of the text.
    """

    test: str
    tree: Tree
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
