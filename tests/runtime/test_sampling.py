import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.randomness import KeyedNoise
from flexspec.runtime.sampling import NonFiniteLogitsError, NothingAllowedError, RequestSampler

Float64 = npt.NDArray[np.float64]


def naive_distribution(logits: Float64, params: SamplingParams) -> tuple[npt.NDArray[np.int64], Float64, Float64]:
    """Support, scores and probabilities by a full sort: temperature, top_k, top_p, min_p."""
    with np.errstate(over="ignore"):
        scores = (logits - logits.max()) / params.temperature
    weights = np.exp(scores)
    order = np.argsort(-logits, kind="stable")
    total = weights.sum()
    if 0 < params.top_k < len(order):
        order = order[: params.top_k]
        total = None
    if params.top_p < 1:
        mass = np.cumsum(weights[order])
        goal = params.top_p * (mass[-1] if total is None else total)
        keep = 1
        while keep < len(order) and mass[keep - 1] < goal:
            keep += 1
        order = order[:keep]
    if params.min_p > 0:
        order = order[weights[order] >= params.min_p]
    support = np.sort(order)
    return support, scores[support], weights[support] / weights[support].sum()


def naive_pick(logits: Float64, params: SamplingParams, seed: int, index: int) -> int:
    support, scores, _ = naive_distribution(logits, params)
    noise = KeyedNoise(seed).gumbel(np.arange(len(logits)), index=index)
    return int(support[np.argmax(scores + noise[support])])


PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1e-6),
    SamplingParams(temperature=1e-300),
    SamplingParams(temperature=1e30),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.7, top_p=0.999),
    SamplingParams(temperature=1e-6, top_p=0.9),
    SamplingParams(temperature=0.7, top_k=1),
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(temperature=0.7, top_k=10**9),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=0.9, top_k=30, top_p=0.8),
    SamplingParams(temperature=0.9, top_p=0.95, min_p=0.02),
    SamplingParams(temperature=1.5, top_k=50, top_p=0.9, min_p=0.1),
]


def sharp(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(3000) * 3).astype(np.float32)


def flat(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(3000) * 0.05).astype(np.float32)


def tied(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return rng.integers(0, 6, 3000).astype(np.float32)


def masked(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return np.where(rng.random(3000) < 0.01, sharp(rng), -np.inf).astype(np.float32)


def nearly_tied(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    values = np.full(3000, 20.0, dtype=np.float32)
    return values + rng.integers(0, 3, 3000).astype(np.float32) * np.float32(2e-6)


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: f"{params.temperature}-{params.top_k}-{params.top_p}-{params.min_p}")
@pytest.mark.parametrize("make", [sharp, flat, tied, masked, nearly_tied])
def test_pick_and_distribution_equal_the_full_computation(
    params: SamplingParams, make: Callable[[np.random.Generator], npt.NDArray[np.float32]]
) -> None:
    rng = np.random.default_rng(1)
    sampler = RequestSampler(params, seed=11, vocab_limit=3000)
    for index in range(6):
        values = make(rng)
        logits = torch.from_numpy(values)
        support, _, probs = naive_distribution(values.astype(np.float64), params)
        distribution = sampler.distribution(logits)
        np.testing.assert_array_equal(distribution.ids, support[probs > 0])
        np.testing.assert_allclose(distribution.probs, probs[probs > 0], rtol=1e-12)
        assert sampler.pick(logits, index) == naive_pick(values.astype(np.float64), params, 11, index)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.one_of(st.integers(-4, 4).map(float), st.floats(-30, 30, width=32)), min_size=1, max_size=12),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_any_small_distribution_equals_the_full_computation(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    array = np.array(values, dtype=np.float32)
    sampler = RequestSampler(params, seed=2, vocab_limit=len(array))
    support, _, probs = naive_distribution(array.astype(np.float64), params)
    distribution = sampler.distribution(torch.from_numpy(array))
    np.testing.assert_array_equal(distribution.ids, support[probs > 0])
    assert distribution.probs.sum() == pytest.approx(1.0, abs=1e-12)
    assert sampler.pick(torch.from_numpy(array), 3) == naive_pick(array.astype(np.float64), params, 2, 3)


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.7), SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=1, top_k=3)]
)
def test_picks_follow_the_distribution(params: SamplingParams) -> None:
    logits = torch.tensor([1.0, 0.2, -0.5, 2.0, 1.9, -9.0, 0.7])
    sampler = RequestSampler(params, seed=5, vocab_limit=7)
    counts = np.bincount([sampler.pick(logits, index) for index in range(6000)], minlength=7)
    distribution = sampler.distribution(logits)
    assert counts.sum() == counts[distribution.ids].sum()
    likely = distribution.probs > 1e-3
    expected = 6000 * distribution.probs[likely]
    assert (
        stats.chisquare(counts[distribution.ids][likely], expected * counts[distribution.ids][likely].sum() / expected.sum()).pvalue > 0.01
    )


def test_greedy_takes_the_lowest_of_equal_ids_whatever_the_noise() -> None:
    sampler = RequestSampler(SamplingParams(), seed=1, vocab_limit=5)
    logits = torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0])
    assert {sampler.pick(logits, index) for index in range(20)} == {1}
    assert sampler.distribution(logits).ids.tolist() == [1]
    assert sampler.perturbed_top(logits, 0, 4, 0.5)[0].tolist() == [1, 3, 4, 2]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1), SamplingParams(temperature=1, top_p=0.5)])
def test_padding_ids_are_never_chosen(params: SamplingParams) -> None:
    logits = torch.tensor([0.0, 0.1, 0.2, 50.0, 60.0])
    sampler = RequestSampler(params, seed=1, vocab_limit=3)
    assert {sampler.pick(logits, index) for index in range(50)} <= {0, 1, 2}
    assert sampler.distribution(logits).ids.max() <= 2
    for alpha in (0.0, 0.5, 1.0):
        assert sorted(sampler.perturbed_top(logits, 0, 5, alpha)[0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1), SamplingParams(temperature=1, top_p=0.5)])
@pytest.mark.parametrize("bad", [[0.0, math.nan, 1.0], [-math.inf] * 3, [0.0, math.inf, 0.0]])
def test_logits_without_a_finite_maximum_are_an_error(params: SamplingParams, bad: list[float]) -> None:
    sampler = RequestSampler(params, seed=1, vocab_limit=3)
    for call in (
        lambda: sampler.pick(torch.tensor(bad), 0),
        lambda: sampler.distribution(torch.tensor(bad)),
        lambda: sampler.perturbed_top(torch.tensor(bad), 0, 2, 0.5),
    ):
        with pytest.raises(NonFiniteLogitsError, match="logits"):
            call()


@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.0])
def test_drafts_are_the_best_perturbed_tokens(alpha: float) -> None:
    rng = np.random.default_rng(4)
    sampler = RequestSampler(SamplingParams(temperature=0.8, top_p=0.1), seed=7, vocab_limit=3000)
    for index in range(10):
        values = sharp(rng)
        scores = (values.astype(np.float64) - values.max()) / 0.8 + alpha * KeyedNoise(7).gumbel(np.arange(3000), index=index)
        ids, found = sampler.perturbed_top(torch.from_numpy(values), index, 5, alpha)
        assert ids.tolist() == np.argsort(-scores, kind="stable")[:5].tolist()
        np.testing.assert_allclose(found, scores[ids])


def test_half_trusted_drafts_are_nearly_always_the_best_ones() -> None:
    rng = np.random.default_rng(4)
    sampler = RequestSampler(SamplingParams(temperature=0.8), seed=7, vocab_limit=3000)
    hits = 0
    for index in range(100):
        values = sharp(rng)
        scores = (values.astype(np.float64) - values.max()) / 0.8 + 0.5 * KeyedNoise(7).gumbel(np.arange(3000), index=index)
        hits += int(sampler.perturbed_top(torch.from_numpy(values), index, 1, 0.5)[0][0] == scores.argmax())
    assert hits >= 98


def test_a_model_that_drafts_for_itself_with_full_trust_proposes_what_it_picks() -> None:
    rng = np.random.default_rng(4)
    sampler = RequestSampler(SamplingParams(temperature=1.0), seed=7, vocab_limit=3000)
    for index in range(50):
        logits = torch.from_numpy(sharp(rng))
        assert sampler.perturbed_top(logits, index, 2, 1.0)[0][0] == sampler.pick(logits, index)


def test_choices_depend_on_seed_completion_and_index_alone() -> None:
    logits = torch.zeros(1000)
    params = SamplingParams(temperature=1.0)

    def text(seed: int, completion: int = 0) -> list[int]:
        sampler = RequestSampler(params, seed=seed, vocab_limit=1000, completion=completion)
        return [sampler.pick(logits, index) for index in range(5)]

    assert text(1) == text(1)
    assert len({tuple(text(1)), tuple(text(2)), tuple(text(1, 1))}) == 3
    sampler = RequestSampler(params, seed=1, vocab_limit=1000)
    assert [sampler.pick(logits, index) for index in reversed(range(5))] == text(1)[::-1]


@pytest.mark.parametrize("count", [10, 1000])
def test_a_nucleus_that_ends_exactly_on_a_token_keeps_no_more(count: int) -> None:
    logits = torch.zeros(count)
    for share in (0.1, 0.5, 0.9):
        params = SamplingParams(temperature=0.8, top_p=share)
        assert len(RequestSampler(params, seed=1, vocab_limit=count).distribution(logits).ids) == round(share * count)


class Keeps:
    """Bans all tokens but some."""

    def __init__(self, *kept: int) -> None:
        self._kept = list(kept)

    def __str__(self) -> str:
        return f"keeps {self._kept}"

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def apply(self, logits: npt.NDArray[np.float32], path: Sequence[int]) -> None:
        banned = np.ones(len(logits), dtype=bool)
        banned[[token for token in self._kept if token < len(logits)]] = False
        logits[banned] = -np.inf


SIZES = [5, 3000]
MASKED_PARAMS = [SamplingParams(), *PARAMS]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("params", MASKED_PARAMS, ids=lambda params: f"{params.temperature}-{params.top_k}-{params.top_p}-{params.min_p}")
def test_a_rule_that_leaves_one_token_leaves_no_choice(params: SamplingParams, size: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal(size).astype(np.float32))
    sampler = RequestSampler(params, seed=3, vocab_limit=size, rules=[Keeps(4)])
    assert {sampler.pick(logits, index) for index in range(5)} == {4}
    assert (sampler.distribution(logits).ids.tolist(), sampler.distribution(logits).probs.tolist()) == ([4], [1.0])
    for alpha in (0.0, 0.5, 1.0):
        ids, scores = sampler.perturbed_top(logits, 0, 3, alpha)
        assert ids.tolist() == [4] and np.isfinite(scores).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("params", MASKED_PARAMS, ids=lambda params: f"{params.temperature}-{params.top_k}-{params.top_p}-{params.min_p}")
def test_few_tokens_left_are_chosen_from_as_if_there_were_no_others(params: SamplingParams, size: int) -> None:
    kept = [0, 2, 3]
    logits = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    sampler = RequestSampler(params, seed=3, vocab_limit=size, rules=[Keeps(*kept)])
    distribution = sampler.distribution(torch.from_numpy(logits))
    if not params.greedy:
        support, _, probs = naive_distribution(logits[kept].astype(np.float64), params)
        assert distribution.ids.tolist() == [kept[place] for place in support[probs > 0]]
        np.testing.assert_allclose(distribution.probs, probs[probs > 0], rtol=1e-12)
    assert {sampler.pick(torch.from_numpy(logits), index) for index in range(20)} <= set(distribution.ids.tolist())
    for alpha in (0.0, 0.5, 1.0):
        ids, scores = sampler.perturbed_top(torch.from_numpy(logits), 0, 5, alpha)
        assert set(ids.tolist()) <= set(kept) and np.isfinite(scores).all()
        # A tiny temperature sends all but the peak out of the range of floating point.
        assert len(ids) == 3 or params.temperature <= 1e-300


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1), SamplingParams(temperature=1, top_p=0.5, top_k=2)])
def test_rules_that_leave_nothing_are_named(params: SamplingParams) -> None:
    sampler = RequestSampler(params, seed=1, vocab_limit=4, rules=[Keeps(0, 1), Keeps(2, 3)])
    for call in (lambda: sampler.pick(torch.zeros(6), 0), lambda: sampler.distribution(torch.zeros(6))):
        with pytest.raises(UsageError, match=r"all 4: keeps \[0, 1\]; keeps \[2, 3\]") as caught:
            call()
        assert isinstance(caught.value, NothingAllowedError)
    for bad in (math.nan, math.inf):
        with pytest.raises(NonFiniteLogitsError) as other:
            sampler.pick(torch.tensor([bad] * 4), 0)
        assert not isinstance(other.value, UsageError)


def test_rules_leave_the_callers_logits_as_they_are() -> None:
    logits = torch.arange(4.0)
    sampler = RequestSampler(SamplingParams(), seed=1, vocab_limit=4, rules=[Keeps(1)])
    assert sampler.pick(logits, 0) == 1 and logits.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_of_many_equal_tokens_the_lowest_ids_are_drafted(alpha: float, temperature: float) -> None:
    sampler = RequestSampler(SamplingParams(temperature=temperature), seed=1, vocab_limit=200)
    ids, scores = sampler.perturbed_top(torch.zeros(200), 3, 4, alpha)
    noise = KeyedNoise(1).gumbel(np.arange(200), index=3)
    expected = np.zeros(200) if temperature == 0 else alpha * noise
    assert ids.tolist() == np.argsort(-expected, kind="stable")[:4].tolist()
    np.testing.assert_allclose(scores, expected[ids])
