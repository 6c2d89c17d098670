"""Does a sample of token sequences come from a model's distribution? Pearson's chi-square test on adaptive cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flexspec.runtime.distribution import Distribution

MIN_EXPECTED = 5.0
"""Cells expected to be hit less often are pooled: below, the statistic is not chi-square distributed."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Counts of outcomes.

    Attributes:
        observed: how often each cell was hit.
        expected: how often it should be, on average; the sum is the number of samples.
        impossible: samples without any probability, counted in the cells of rare ones as well.
    """

    observed: Sequence[int]
    expected: Sequence[float]
    impossible: int


def count_cells(samples: Sequence[Tokens], next_distribution: Callable[[Tokens], Distribution], depth: int) -> Cells:
    """Split the outcomes into cells, each a prefix of a sequence, as finely as the number of samples allows.

    A prefix is split by its next token as long as children are expected often enough; its rare children are one cell together.

    Args:
        samples: sequences of at least `depth` tokens.
        next_distribution: the exact distribution of the token after a prefix.
        depth: how many tokens count.
    """
    observed: list[int] = []
    expected: list[float] = []
    impossible = 0

    def split(prefix: Tokens, expected_count: float, members: Sequence[Tokens]) -> None:
        nonlocal impossible
        p = next_distribution(prefix)
        place = len(prefix)
        groups: dict[int, list[Tokens]] = {}
        for member in members:
            groups.setdefault(member[place], []).append(member)
        rare, rare_hits = 0.0, sum(len(group) for token, group in groups.items() if p.prob(token) == 0)
        impossible += rare_hits
        for token, prob in zip(p.ids.tolist(), p.probs.tolist(), strict=True):
            group = groups.get(token, [])
            if expected_count * prob < MIN_EXPECTED:
                rare, rare_hits = rare + expected_count * prob, rare_hits + len(group)
            elif place + 1 < depth and expected_count * prob >= 2 * MIN_EXPECTED:
                split((*prefix, token), expected_count * prob, group)
            else:
                observed.append(len(group))
                expected.append(expected_count * prob)
        if rare > 0 or rare_hits:
            observed.append(rare_hits)
            expected.append(rare)

    split((), float(len(samples)), samples)
    return Cells(observed=observed, expected=expected, impossible=impossible)


def p_value(cells: Cells) -> tuple[float, int]:
    """The chance of a fit this bad or worse if the samples are from the distribution, and the number of cells left after pooling.

    1 if a single cell is left, which tests nothing.
    """
    observed, expected = _pooled(cells)
    if len(expected) < 2:
        return 1.0, len(expected)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, df=len(expected) - 1)), len(expected)


def _pooled(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """Cells that are expected too rarely become one, which joins the smallest other one if it is still too small."""
    observed, expected = np.asarray(cells.observed, dtype=np.float64), np.asarray(cells.expected)
    small = expected < MIN_EXPECTED
    if not small.any():
        return observed, expected
    rest_observed, rest_expected = observed[small].sum(), expected[small].sum()
    observed, expected = observed[~small], expected[~small]
    if rest_expected >= MIN_EXPECTED or not len(expected):
        return np.append(observed, rest_observed), np.append(expected, rest_expected)
    smallest = int(np.argmin(expected))
    observed[smallest] += rest_observed
    expected[smallest] += rest_expected
    return observed, expected
