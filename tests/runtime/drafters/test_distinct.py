import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.distinct import draw_distinct
from oracles.enumerate import law

WEIGHTS = st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.5, 1.0, 3.0]), min_size=1, max_size=4).filter(any)


def distribution(weights: list[float]) -> Distribution:
    array = np.array(weights)
    ids = np.flatnonzero(array)
    return Distribution(ids=ids, probs=array[ids] / array.sum())


@given(weights=WEIGHTS, count=st.integers(1, 5))
def test_every_order_has_the_probability_of_drawing_without_replacement(weights: list[float], count: int) -> None:
    q = distribution(weights)
    found = law(lambda draws: tuple(token for token, _ in draw_distinct(draws, q, count)))
    assert abs(sum(found.values()) - 1) < 1e-12
    for tokens, probability in found.items():
        assert len(set(tokens)) == len(tokens) == min(count, len(q.ids))
        expected, left = 1.0, list(weights)
        for token in tokens:
            expected *= left[token] / sum(left)
            left[token] = 0.0
        assert abs(probability - expected) < 1e-12


@given(weights=WEIGHTS)
def test_each_draw_carries_what_it_was_drawn_from(weights: list[float]) -> None:
    q = distribution(weights)
    law(lambda draws: _check(draw_distinct(draws, q, 9), q))


def _check(drawn: list[tuple[int, Distribution]], q: Distribution) -> int:
    before: list[int] = []
    for token, left in drawn:
        assert sorted([*before, *left.ids.tolist()]) == q.ids.tolist()
        assert left.prob(token) > 0 and abs(left.probs.sum() - 1) < 1e-12
        before.append(token)
    assert len(before) == len(q.ids)
    return 0
