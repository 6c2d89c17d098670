"""The chi-square test: values known in advance, the right law passes, wrong ones fail."""

import itertools

import numpy as np
import pytest
from scipy import stats

from flexspec.checking.goodness_of_fit import Cells, Tokens, count_cells, p_value
from flexspec.runtime.distribution import Distribution


def law(*probs: float) -> Distribution:
    kept = [token for token, prob in enumerate(probs) if prob > 0]
    return Distribution(ids=np.array(kept, dtype=np.int64), probs=np.array([probs[token] for token in kept]))


def next_distribution(beginning: Tokens) -> Distribution:
    """A Markov chain over tokens 0 to 3; 3 never follows 3."""
    if not beginning:
        return law(0.6, 0.3, 0.08, 0.02)
    return (law(0.1, 0.2, 0.3, 0.4), law(0.7, 0.3, 0.0, 0.0), law(0.25, 0.25, 0.25, 0.25), law(0.5, 0.3, 0.2, 0.0))[beginning[-1]]


def draw(count: int, length: int, seed: int, p=next_distribution) -> list[Tokens]:
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        tokens: Tokens = ()
        for _ in range(length):
            now = p(tokens)
            tokens = (*tokens, int(rng.choice(now.ids, p=now.probs)))
        samples.append(tokens)
    return samples


def test_known_p_value() -> None:
    value, cells = p_value(Cells(observed=[44, 56], expected=[50.0, 50.0], impossible=0))
    assert cells == 2
    assert value == pytest.approx(float(stats.chisquare([44, 56]).pvalue))


def test_rare_cells_are_pooled() -> None:
    value, cells = p_value(Cells(observed=[50, 44, 2, 4], expected=[47.0, 47.0, 3.0, 3.0], impossible=0))
    assert cells == 3
    assert value == pytest.approx(float(stats.chisquare([50, 44, 6], [47, 47, 6]).pvalue))
    value, cells = p_value(Cells(observed=[50, 46, 4], expected=[57.0, 40.0, 3.0], impossible=0))
    assert cells == 2  # too rare even together: joins the smallest
    assert value == pytest.approx(float(stats.chisquare([50, 50], [57, 43]).pvalue))


def test_one_cell_tests_nothing() -> None:
    assert p_value(Cells(observed=[3], expected=[3.0], impossible=0)) == (1.0, 1)


def test_cells_cover_everything_once() -> None:
    samples = draw(1000, 3, seed=1)
    cells = count_cells(samples, next_distribution, 3)
    assert sum(cells.observed) == 1000
    assert sum(cells.expected) == pytest.approx(1000.0)
    assert cells.impossible == 0
    # Finer than the first tokens, since they are frequent: the likeliest triple is a cell of its own.
    assert max(cells.expected) < 200
    exact = {}
    for triple in itertools.product(range(4), repeat=3):
        exact[triple] = float(np.prod([next_distribution(triple[:place]).prob(triple[place]) for place in range(3)]))
    likeliest = max(exact, key=lambda triple: exact[triple])
    place = cells.expected.index(pytest.approx(1000 * exact[likeliest]))
    assert cells.observed[place] == samples.count(likeliest)


def test_the_right_law_passes_as_often_as_promised() -> None:
    values = [p_value(count_cells(draw(400, 2, seed=seed), next_distribution, 2))[0] for seed in range(100)]
    assert stats.kstest(values, "uniform").pvalue > 0.01


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_law_fails_wherever_it_is_wrong(place: int) -> None:
    def wrong(beginning: Tokens) -> Distribution:
        p = next_distribution(beginning)
        if len(beginning) != place:
            return p
        probs = p.probs.copy()
        probs[0] *= 1.6
        return Distribution(ids=p.ids, probs=probs / probs.sum())

    assert p_value(count_cells(draw(2000, 3, seed=2, p=wrong), next_distribution, 3))[0] < 1e-4


def test_impossible_texts_are_counted() -> None:
    samples = [*draw(990, 2, seed=3), *[(1, 2)] * 10]
    cells = count_cells(samples, next_distribution, 2)
    assert cells.impossible == 10
    assert sum(cells.observed) == 1000
