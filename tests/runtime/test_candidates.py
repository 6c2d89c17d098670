import numpy as np
import pytest

from flexspec.runtime.candidates import Candidates

ALPHAS = np.array([0.0, 0.3, 1.0, 2.0])


def test_the_best_are_those_of_sorting_and_the_lowest_of_equal_ids_comes_first() -> None:
    candidates = Candidates(ids=np.array([2, 5, 9]), scores=np.array([0.0, -1.0, 0.0]), noise=np.array([0.0, 4.0, 0.0]))
    places, scores = candidates.best(3, 0.5)
    assert places.tolist() == [1, 0, 2] and scores.tolist() == [1.0, 0.0, 0.0]
    assert candidates.best(2, 0.0)[0].tolist() == [0, 2]


def test_ranks_are_places_in_that_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ids = np.sort(rng.choice(1000, size=20, replace=False))
        candidates = Candidates(ids=ids, scores=rng.standard_normal(20), noise=rng.gumbel(size=20))
        place = int(rng.integers(20))
        ranks = candidates.ranks(int(ids[place]), ALPHAS)
        assert ranks is not None
        assert ranks.tolist() == [candidates.best(20, alpha)[0].tolist().index(place) for alpha in ALPHAS]


def test_a_token_that_is_not_among_them_has_no_rank() -> None:
    candidates = Candidates(ids=np.array([2, 5]), scores=np.zeros(2), noise=np.zeros(2))
    assert [candidates.ranks(token, ALPHAS) is None for token in (0, 2, 3, 5, 6)] == [True, False, True, False, True]
    assert Candidates(ids=np.array([2, 5]), scores=np.zeros(2), noise=None).ranks(2, ALPHAS) is None


@pytest.mark.parametrize("noise", [None, np.array([1.0, 0.0, 0.5])])
def test_shares_are_a_softmax_with_all_of_the_noise(noise: np.ndarray | None) -> None:
    scores = np.log(np.array([0.1, 0.6, 0.3]))
    weights = np.exp(scores + (0.0 if noise is None else noise))
    shares = Candidates(ids=np.arange(3), scores=scores, noise=noise).shares(np.array([2, 0]))
    np.testing.assert_allclose(shares, weights[[2, 0]] / weights.sum())


@pytest.mark.parametrize("place", range(4))
def test_scores_of_minus_infinity_are_equal_to_each_other(place: int) -> None:
    # As at temperature 5e-324, where all but the peak are that far away.
    scores = np.array([-np.inf, 0.0, -np.inf, -np.inf])
    candidates = Candidates(ids=np.arange(4), scores=scores, noise=np.array([0.0, -1.0, 3.0, 1.0]))
    ranks = candidates.ranks(place, ALPHAS)
    assert ranks is not None and ranks.tolist() == [[1, 0, 2, 3][place]] * 4
    assert [candidates.best(4, alpha)[0].tolist() for alpha in ALPHAS] == [[1, 0, 2, 3]] * 4
