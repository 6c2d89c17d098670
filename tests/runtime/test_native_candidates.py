"""The native search and the portable one find the same candidates."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cpu.native import NativeUnavailable, load_library
from flexspec.codegen.cpu.native.column_search import column_search
from flexspec.runtime import candidate_search
from flexspec.runtime.candidate_search import Sought, find_best, find_candidates
from flexspec.runtime.drafters.grades import grade
from flexspec.runtime.randomness import KeyedNoise


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    try:
        load_library()
    except NativeUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")


LOGITS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, -np.inf, 3e38, -3.4028235e38]),  # ties, banned tokens, the ends of the range
    st.floats(-40, 40, width=32),
)
BAD = st.sampled_from([np.nan, np.inf])


@st.composite
def searches(draw: st.DrawFn) -> tuple[np.ndarray, list[Sought], np.ndarray | None]:
    rows, columns = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 15, 16, 17, 64, 130]))
    fill = draw(LOGITS)
    values = draw(hnp.arrays(np.float32, (rows, columns), elements=LOGITS, fill=st.just(fill)))
    if draw(st.booleans()):
        values[draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))] = draw(BAD)
    sought = [
        Sought(
            nodes=1,
            k=draw(st.sampled_from([1, 2, 4, 70, 200])),
            temperature=draw(st.sampled_from([1.0, 0.3, 1e-3, 5e-324, 1e5])),
            noise=draw(st.sampled_from([None, KeyedNoise(3)])),
            position=7,
            alpha=draw(st.sampled_from([0.5, 1.0])),
        )
        for _ in range(rows)
    ]
    return values, sought, draw(st.sampled_from([None, np.arange(5, 1000, 3)]))


def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_search, "column_search", lambda: None)


@settings(max_examples=150, deadline=None)
@given(searches())
def test_both_find_the_same(search: tuple[np.ndarray, list[Sought], np.ndarray | None]) -> None:
    values, sought, token_ids = search
    silent = [one._replace(noise=None) for one in sought]
    assert column_search() is not None
    native, peaks = find_candidates(values, sought, token_ids)
    best, best_peaks = find_best(values, silent, token_ids)
    with pytest.MonkeyPatch.context() as monkeypatch:
        portable(monkeypatch)
        other, other_peaks = find_candidates(values, sought, token_ids)
        other_best, _ = find_best(values, silent, token_ids)
    np.testing.assert_array_equal(peaks, other_peaks)
    np.testing.assert_array_equal(best_peaks, other_peaks)
    np.testing.assert_array_equal(native.ids, other.ids)
    np.testing.assert_array_equal(native.scores, other.scores)
    np.testing.assert_array_equal(native.nodes, other.nodes)
    assert list(native.bounds) == list(other.bounds)
    assert (native.noise is None) == (other.noise is None)
    if native.noise is not None and other.noise is not None:
        np.testing.assert_array_equal(native.noise, other.noise)
    for peak, (tokens, shares), (other_tokens, other_shares) in zip(peaks, best, other_best, strict=True):
        if np.isfinite(peak):
            assert tokens == other_tokens
            np.testing.assert_allclose(shares, other_shares, rtol=1e-12)  # exp and the order of a sum may differ in the last bit


def test_many_equals_and_rows_grow_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((40, 300), dtype=np.float32)
    values[7, 9] = 1.0
    sought = [Sought(nodes=40, k=3, temperature=0.1, noise=None, position=1, alpha=0.0)]
    native, _ = find_candidates(values, sought)
    best, _ = find_best(values, sought)
    portable(monkeypatch)
    other, _ = find_candidates(values, sought)
    np.testing.assert_array_equal(native.ids, other.ids)
    assert list(native.bounds) == list(other.bounds)
    assert best[6][0] == [0, 1, 2] and best[7][0] == [9, 0, 1]


def test_confidence_classes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((200, 400)) * rng.uniform(0.1, 8.0, size=(200, 1))).astype(np.float32)
    values[:20] = np.round(values[:20])  # equal tokens have shares at the very edge of a class
    sought = [Sought(nodes=200, k=6, temperature=1.0, noise=None, position=1, alpha=0.0)]
    native, _ = find_best(values[:, 10:390], sought)
    portable(monkeypatch)
    other, _ = find_best(values[:, 10:390], sought)
    assert [(tokens, [*map(grade, shares)]) for tokens, shares in native] == [(tokens, [*map(grade, shares)]) for tokens, shares in other]
