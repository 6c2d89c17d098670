"""A pool of draft models: collective boosting (SpecInfer, Miao et al. 2024, section 3.2), place by place instead of sample by sample."""

from collections.abc import Iterable, Sequence

import numpy as np

from flexspec.tuning.corpus import Bool
from flexspec.tuning.evaluation import RANKS, RankTable


def add_guessed(guessed: dict[int, Bool], table: RankTable, numbers: Iterable[int]) -> None:
    """Note which tokens another member guesses.

    Args:
        guessed: by text, [tokens] whether a member guesses the token; grows.
        table: of the member.
        numbers: texts in it.
    """
    for number in numbers:
        hits = table.hits(number)
        guessed[number] = hits | guessed[number] if number in guessed else hits


def joint_coverage(tables: Sequence[RankTable], numbers: Iterable[int]) -> list[list[float]]:
    """How much of the text the first member, the first two, … guess together.

    Args:
        tables: one a member, over the same texts.
        numbers: the texts.

    Returns:
        [members][k - 1] share of the predicted tokens that are among the first k of at least one of these members.
    """
    best = [np.minimum.accumulate([table.ranks[number][0] for table in tables]) for number in numbers]
    ranks = np.concatenate(best, axis=1)  # [members, places]
    ranks = ranks[:, ranks[0] >= 0]
    return [[round(float((row < k).mean()), 4) for k in range(1, RANKS + 1)] for row in ranks]
