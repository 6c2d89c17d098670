from collections.abc import Sequence

import numpy as np
import pytest

from flexspec.runtime.candidates import Candidates

ALPHAS = np.array([0.0, 0.3, 1.0, 2.0])


def candidates(ids: Sequence[int], scores: Sequence[float], noise: Sequence[float] | None, sizes: Sequence[int] = ()) -> Candidates:
    """At one node, or at nodes that have `sizes` of them."""
    sizes = sizes or [len(ids)]
    return Candidates(
        ids=np.array(ids),
        scores=np.array(scores, np.float64),
        noise=None if noise is None else np.array(noise, np.float64),
        nodes=np.arange(len(sizes)).repeat(sizes),
        bounds=np.cumsum([0, *sizes]).tolist(),
    )


def random(sizes: Sequence[int]) -> Candidates:
    rng = np.random.default_rng(0)
    ids = [token for size in sizes for token in np.sort(rng.choice(1000, size=size, replace=False)).tolist()]
    return candidates(ids, rng.standard_normal(len(ids)).tolist(), rng.gumbel(size=len(ids)).tolist(), sizes)


def best(own: Candidates, k: int, alpha: float) -> list[int]:
    return own.best([k], [alpha])[0][0]


def test_the_best_are_those_of_sorting_and_the_lowest_of_equal_ids_comes_first() -> None:
    own = candidates([2, 5, 9], [0.0, -1.0, 0.0], [0.0, 4.0, 0.0])
    order, scores = own.order([0.5])
    assert order.tolist() == [1, 0, 2] and scores.tolist() == [0.0, 1.0, 0.0]
    assert best(own, 3, 0.5) == [5, 2, 9] and best(own, 2, 0.0) == [2, 9] and best(own, 7, 0.0) == [2, 9, 5]


def test_nodes_taken_together_are_nodes_taken_one_by_one() -> None:
    own = random([3, 1, 20, 7])
    widths, alphas = [2, 4, 3, 1], [0.5, 0.0, 1.0, 2.0]
    for node, (tokens, shares) in enumerate(own.best(widths, alphas)):
        ((alone, its_shares),) = own.at(node).best([widths[node]], [alphas[node]])
        assert tokens == alone and len(tokens) == min(widths[node], [3, 1, 20, 7][node])
        np.testing.assert_allclose(shares, its_shares, rtol=1e-12)


def test_ranks_are_places_in_that_order() -> None:
    whole = random([20] * 50)
    for node in range(50):
        own = whole.at(node)
        token = int(own.ids[node % 20])
        ranks = own.ranks(token, ALPHAS)
        assert ranks is not None
        assert ranks.tolist() == [best(own, 20, alpha).index(token) for alpha in ALPHAS]


def test_a_token_that_is_not_among_them_has_no_rank() -> None:
    own = candidates([2, 5], [0, 0], [0, 0])
    assert [own.ranks(token, ALPHAS) is None for token in (0, 2, 3, 5, 6)] == [True, False, True, False, True]
    assert candidates([2, 5], [0, 0], None).ranks(2, ALPHAS) is None


@pytest.mark.parametrize("noise", [None, [1.0, 0.0, 0.5]])
def test_shares_are_a_softmax_with_all_of_the_noise(noise: list[float] | None) -> None:
    scores = np.log(np.array([0.1, 0.6, 0.3]))
    weights = np.exp(scores + (0.0 if noise is None else np.array(noise)))
    ((tokens, shares),) = candidates([0, 1, 2], scores.tolist(), noise).best([2], [0.0])
    assert tokens == [1, 2]
    np.testing.assert_allclose(shares, weights[[1, 2]] / weights.sum())


@pytest.mark.parametrize("place", range(4))
def test_scores_of_minus_infinity_are_equal_to_each_other(place: int) -> None:
    # As at temperature 5e-324, where all but the peak are that far away.
    own = candidates(range(4), [-np.inf, 0.0, -np.inf, -np.inf], [0.0, -1.0, 3.0, 1.0])
    ranks = own.ranks(place, ALPHAS)
    assert ranks is not None and ranks.tolist() == [[1, 0, 2, 3][place]] * 4
    assert [best(own, 4, alpha) for alpha in ALPHAS] == [[1, 0, 2, 3]] * 4
