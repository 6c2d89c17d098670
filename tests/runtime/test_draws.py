import numpy as np
from scipy import stats

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import KeyedDraws
from flexspec.runtime.randomness import KeyedNoise


def draws(index: int = 0, stream: int = 1, seed: int = 5) -> KeyedDraws:
    return KeyedDraws(KeyedNoise(seed), index=index, stream=stream)


def test_certain_events_are_certain() -> None:
    sequence = draws()
    assert not any(sequence.bernoulli(0.0) for _ in range(200))
    assert all(sequence.bernoulli(1.0) for _ in range(200))


def test_bernoulli_has_its_probability() -> None:
    sequence = draws()
    hits = sum(sequence.bernoulli(0.3) for _ in range(4000))
    assert stats.binomtest(hits, 4000, 0.3).pvalue > 0.01


def test_choice_has_its_distribution_and_never_takes_a_zero() -> None:
    distribution = Distribution(ids=np.array([3, 9, 20, 21]), probs=np.array([0.5, 0.0, 0.2, 0.3]))
    sequence = draws()
    counts = np.bincount([sequence.choice(distribution) for _ in range(4000)], minlength=22)
    assert counts[9] == 0 and counts.sum() == counts[[3, 20, 21]].sum()
    assert stats.chisquare(counts[[3, 20, 21]], 4000 * np.array([0.5, 0.2, 0.3])).pvalue > 0.01


def test_draws_depend_on_their_key_and_order_alone() -> None:
    uniform = Distribution(ids=np.arange(1000), probs=np.full(1000, 1e-3))
    first = [draws().choice(uniform) for _ in range(1)]
    sequence = draws()
    again = [sequence.choice(uniform) for _ in range(6)]
    assert again[0] == first[0] and len(set(again)) > 1
    for other in (draws(index=1), draws(stream=2), draws(seed=6)):
        assert [other.choice(uniform) for _ in range(6)] != again
