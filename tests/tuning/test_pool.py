"""Pools: what members guess together."""

from types import SimpleNamespace

import numpy as np

from flexspec.tuning.pool import add_guessed, joint_coverage


def table(*rows: list[int]) -> SimpleNamespace:
    ranks = {number: np.array([row]) for number, row in enumerate(rows)}
    return SimpleNamespace(ranks=ranks, hits=lambda number: ranks[number][0] == 0)


FIRST = table([-1, 0, 3, 8, 1], [-1, -1, 0])
SECOND = table([-1, 2, 0, 8, 0], [-1, -1, 5])
THIRD = table([-1, 8, 8, 1, 8], [-1, -1, 8])


def test_coverage_of_the_first_few_together() -> None:
    tables = [FIRST, SECOND, THIRD]
    # best ranks over 5 places: 0 3 8 1 0 | 0 0 8 0 0 | 0 0 1 0 0
    expected = [[0.4, 0.6, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8], [0.8] * 8, [0.8, *[1.0] * 7]]
    assert joint_coverage(tables, [0, 1]) == expected  # type: ignore[arg-type]
    assert joint_coverage(tables[:1], [1]) == [[1.0] * 8]  # type: ignore[arg-type]


def test_guesses_add_up() -> None:
    guessed: dict[int, np.ndarray] = {}
    add_guessed(guessed, FIRST, [0, 1])  # type: ignore[arg-type]
    assert [guessed[number].tolist() for number in (0, 1)] == [[False, True, False, False, False], [False, False, True]]
    add_guessed(guessed, SECOND, [0])  # type: ignore[arg-type]
    assert guessed[0].tolist() == [False, True, True, False, True] and guessed[1].tolist() == [False, False, True]
    assert FIRST.hits(0).tolist() == [False, True, False, False, False], "tables stay as they were"
