"""Acceptance that is given, as the table that the search takes."""

from collections.abc import Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.passes.search.trees import MOST_BRANCH, MOST_DEPTH

_TRIED = 1e8
"""So many trials that an estimate is as good as what is given."""
_ALL_GRADES = -1


def known_acceptance(drafter: str, chances: Sequence[float]) -> AcceptanceTable:
    """A table in which a drafter's children are accepted with given chances at every depth.

    Args:
        drafter: its name.
        chances: P(accepted | parent accepted) by rank; ranks beyond are never accepted.
    """
    table = AcceptanceTable()
    part = table.of(drafter)
    for depth in range(1, MOST_DEPTH):
        for rank in range(MOST_BRANCH):
            chance = chances[rank] if rank < len(chances) else 0.0
            part.restore((_ALL_GRADES, rank, depth), _TRIED, chance * _TRIED)
    return table


def expected_tokens(widths: Sequence[int], chances: Sequence[float]) -> float:
    """Tokens that a step of a static tree emits, the bonus token included (equation 9).

    Args:
        widths: children of a node, level by level.
        chances: as `known_acceptance` takes them.
    """
    total = level = 1.0
    for width in widths:
        level *= sum(chances[:width])
        total += level
    return total
