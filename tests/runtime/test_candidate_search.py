"""Candidates of many nodes found together are those of each node found alone."""

import numpy as np
import pytest

from flexspec.runtime import candidate_search
from flexspec.runtime.candidate_search import Sought, find_candidates
from flexspec.runtime.randomness import KeyedNoise
from flexspec.runtime.tempered import within

VOCAB = 500
RNG = np.random.default_rng(1)
SHARPNESS = np.array([0.01, 0.5, 3.0, 40.0, 2.0, 1.0])
LOGITS = (RNG.standard_normal((6, VOCAB)) * SHARPNESS[:, None]).astype(np.float32)
TOKEN_IDS = np.sort(RNG.choice(5000, size=VOCAB, replace=False)).astype(np.int64)


def sought(nodes: int, **changes) -> Sought:
    options = {"k": 3, "temperature": 1.0, "noise": KeyedNoise(5), "position": 7, "alpha": 0.5} | changes
    return Sought(nodes=nodes, **options)


MIXED = [
    sought(2, noise=None),
    sought(1, k=80, temperature=0.3),
    sought(1, alpha=1.0, is_exact=True, noise=KeyedNoise(6)),
    sought(2, position=9, temperature=1e-300),
]


@pytest.fixture(autouse=True)
def _portable(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever other tests have loaded; that the native search finds the same is tested elsewhere.
    monkeypatch.setattr(candidate_search, "column_search", lambda: None)


@pytest.mark.parametrize("token_ids", [None, TOKEN_IDS], ids=["all", "trimmed"])
def test_requests_that_share_a_pass_do_not_change_each_other(token_ids: np.ndarray | None) -> None:
    together, peaks = find_candidates(LOGITS, MIXED, token_ids)
    assert peaks == LOGITS.max(axis=1).tolist()
    each = [one._replace(nodes=1) for one in MIXED for _ in range(one.nodes)]
    for node, one in enumerate(each):
        alone, _ = find_candidates(LOGITS[node : node + 1], [one], token_ids)
        own = together.at(node)
        np.testing.assert_array_equal(own.ids, alone.ids)
        np.testing.assert_array_equal(own.scores, alone.scores)
        assert (own.noise is None) == (alone.noise is None) == (one.noise is None)
        if alone.noise is not None:
            np.testing.assert_array_equal(own.noise, alone.noise)


def test_they_are_the_likeliest_with_the_noise_of_their_position() -> None:
    for node, logits in enumerate(LOGITS):
        found, _ = find_candidates(LOGITS, [sought(6)], TOKEN_IDS)
        own = found.at(node)
        likeliest = TOKEN_IDS[np.sort(np.argsort(-logits, kind="stable")[: len(own.ids)])]
        np.testing.assert_array_equal(own.ids, likeliest)
        assert 16 <= len(own.ids) <= 64
        np.testing.assert_array_equal(own.noise, KeyedNoise(5).gumbel(own.ids, index=7))
        columns = np.searchsorted(TOKEN_IDS, own.ids)
        np.testing.assert_array_equal(own.scores, logits[columns].astype(np.float64) - float(logits.max()))


def test_banned_tokens_are_never_among_them() -> None:
    logits = np.full((2, VOCAB), -np.inf, dtype=np.float32)
    logits[0, [3, 9]] = 1.0
    logits[1, 4], logits[1, 7] = 0.0, -1e30
    found, _ = find_candidates(logits, [sought(2, k=5)])
    assert [found.at(node).ids.tolist() for node in range(2)] == [[3, 9], [4, 7]]


def test_where_next_to_nothing_is_allowed_the_search_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.full((2, VOCAB), -np.inf, dtype=np.float32)
    logits[0, 3], logits[1, [4, 7]] = 2.0, [0.0, -30.0]
    looks: list[float] = []

    def counted(values: np.ndarray, peak: float, spread: float, temperature: float) -> np.ndarray:
        looks.append(spread)
        return within(values, peak, spread, temperature)

    monkeypatch.setattr(candidate_search, "within", counted)
    found, _ = find_candidates(logits, [sought(2)])
    assert [found.at(node).ids.tolist() for node in range(2)] == [[3], [4, 7]]
    assert looks == [10.0, 20.0, 40.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_node_that_is_not_finite_leaves_the_others_alone(bad: float) -> None:
    logits = LOGITS.copy()
    logits[1] = bad
    found, peaks = find_candidates(logits, [sought(6)])
    assert [np.isfinite(peak) for peak in peaks] == [True, False, True, True, True, True]
    clean, _ = find_candidates(LOGITS, [sought(6)])
    for node in (0, 2, 3, 4, 5):
        np.testing.assert_array_equal(found.at(node).ids, clean.at(node).ids)
