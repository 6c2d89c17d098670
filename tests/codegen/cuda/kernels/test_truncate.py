"""What is cut at a node, and the probabilities of what is left, against the host's sampler."""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cuda.kernels import probabilities as probabilities_module
from flexspec.codegen.cuda.kernels import truncate as truncate_module
from flexspec.codegen.cuda.kernels.probabilities import probabilities, probabilities_reference, probabilities_variants
from flexspec.codegen.cuda.kernels.residual import ROW_UNIT
from flexspec.codegen.cuda.kernels.truncate import Cuts, truncate, truncate_reference, truncate_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS
from flexspec.config import SamplingParams
from flexspec.runtime.sampling import RequestSampler

Float64 = npt.NDArray[np.float64]
TRUNCATE = {"kernel": truncate, "reference": truncate_reference}
PROBABILITIES = {"kernel": probabilities, "reference": probabilities_reference}
ROUNDING = 1e-14


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the interpreter is quicker with."""
    for name in ("_WIDE_BLOCK", "_BLOCK"):
        monkeypatch.setattr(truncate_module, name, 32)
    monkeypatch.setattr(probabilities_module, "_BLOCK", 32)


def rules(params: list[SamplingParams], limits: list[int]) -> dict[str, torch.Tensor]:
    return {
        "temperatures": torch.tensor([one.temperature for one in params], dtype=torch.float64),
        "vocab_limits": torch.tensor(limits, dtype=torch.int32),
        "top_ks": torch.tensor([min(one.top_k, 2**31 - 1) for one in params], dtype=torch.int32),
        "top_ps": torch.tensor([one.top_p for one in params], dtype=torch.float64),
        "min_ps": torch.tensor([one.min_p for one in params], dtype=torch.float64),
    }


def kept(logits: torch.Tensor, cuts: Cuts, row: int, limit: int) -> list[int]:
    """What a cut leaves of a row, but for tokens that are banned."""
    values, ids = logits[row, :limit], torch.arange(limit)
    is_kept = (values > cuts.logits[row]) | ((values == cuts.logits[row]) & (ids <= cuts.ids[row]))
    return ids[is_kept & (values > -torch.inf)].tolist()


def on_host(logits: torch.Tensor, params: SamplingParams, limit: int) -> list[int]:
    """What the host's sampler keeps."""
    sampler = RequestSampler(params, seed=0, vocab_limit=limit)
    values, top = sampler._values(logits, ())
    ids = sampler._survivors(values, top)
    return np.flatnonzero(values > -np.inf).tolist() if ids is None else ids[values[ids] > -np.inf].tolist()


def assert_as_on_host(by: str, logits: torch.Tensor, params: list[SamplingParams], limits: list[int]) -> None:
    """What is kept, and its probabilities."""
    given = rules(params, limits)
    cuts = TRUNCATE[by](logits, **given)
    probs = PROBABILITIES[by](logits, temperatures=given["temperatures"], vocab_limits=given["vocab_limits"], cuts=cuts)
    assert probs.shape == (len(logits), -(-logits.shape[1] // ROW_UNIT) * ROW_UNIT)
    for row, (one, limit) in enumerate(zip(params, limits, strict=True)):
        assert kept(logits, cuts, row, limit) == on_host(logits[row], one, limit), (row, one)
        wanted = RequestSampler(one, seed=0, vocab_limit=limit).distribution(logits[row])
        dense = np.zeros(probs.shape[1])
        dense[wanted.ids] = wanted.probs
        np.testing.assert_allclose(probs[row].numpy(), dense, rtol=0, atol=ROUNDING)


def cases(rng: np.random.Generator, vocab: int) -> Iterator[Float64]:
    yield rng.normal(size=vocab) * 3
    yield rng.normal(size=vocab) * 0.05
    yield rng.integers(-1, 3, vocab).astype(float)  # ties, and zeros
    yield np.where(rng.random(vocab) < 0.2, rng.normal(size=vocab), -np.inf)
    yield 20 + rng.integers(0, 3, vocab) * 2e-6  # a float32's last bits
    yield np.zeros(vocab) * np.where(rng.random(vocab) < 0.5, -1.0, 1.0)  # zeros of both signs


TEMPERATURES = (1e-300, 1e-6, 0.7, 1.0, 5.0, 1e30)
TRUNCATIONS = [
    SamplingParams(temperature=1.0, **changes)  # type: ignore[arg-type]
    for changes in (
        {},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 10**12},
        {"top_p": 0.05},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"top_k": 30, "top_p": 0.8},
        {"top_p": 0.95, "min_p": 0.02},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.1},
    )
]


@pytest.mark.parametrize(("by", "vocab", "share"), [("reference", 90, 1), ("kernel", 64, 36), ("kernel", 77, 36)])
def test_what_is_kept_is_what_the_host_keeps(by: str, vocab: int, share: int) -> None:
    rng = np.random.default_rng(vocab)
    rows, params, limits = [], [], []
    for place, (values, temperature, truncation) in enumerate(itertools.product(cases(rng, vocab), TEMPERATURES, TRUNCATIONS)):
        if place % share == (place // share) % share:
            rows.append(values)
            params.append(SamplingParams(**vars(truncation) | {"temperature": temperature}))
            limits.append(vocab - int(rng.integers(0, 20)) if place % 4 == 0 else vocab)
    logits = torch.from_numpy(np.array(rows)).float()
    for row, limit in enumerate(limits):
        logits[row, :limit][logits[row, :limit].argmin()] = -1.5  # so that there is one
        logits[row, limit:] = 1000
    assert_as_on_host(by, logits, params, limits)


LOGITS = st.lists(st.one_of(st.integers(-4, 4).map(float), st.floats(-30, 30, width=32)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    values=LOGITS,
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_any_few_logits_as_on_the_host(values: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert_as_on_host("reference", torch.tensor([values], dtype=torch.float32), [params], [len(values)])


@settings(max_examples=8, deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from([-3.5, -1.0, 0.0, 0.5, 0.5, 2.0, 1e-30]), min_size=5, max_size=5), min_size=3, max_size=3))
def test_any_few_logits_by_the_kernel(rows: list[list[float]]) -> None:
    params = [SamplingParams(temperature=0.8, top_k=3), SamplingParams(temperature=1.0, top_p=0.6)]
    params.append(SamplingParams(temperature=1.3, top_k=4, top_p=0.8, min_p=0.2))
    assert_as_on_host("kernel", torch.tensor(rows, dtype=torch.float32), params, [5] * 3)


def test_every_number_of_equals_that_top_p_may_keep() -> None:
    """All of a vocabulary of equals are cut where their shares say, whatever comes before them."""
    rows, params = [], []
    for above, equals, top_p in itertools.product((0, 1, 3), (1, 2, 5), (0.1, 0.3, 0.55, 0.8, 0.97)):
        rows.append([2.0] * above + [1.0] * equals + [-3.0] * (10 - above - equals))
        params.append(SamplingParams(temperature=1.0, top_p=top_p))
    logits = torch.tensor(rows, dtype=torch.float32)
    logits = logits[:, torch.from_numpy(np.random.default_rng(3).permutation(10))].contiguous()
    assert_as_on_host("reference", logits, params, [10] * len(rows))
    assert_as_on_host("kernel", logits[::4].contiguous(), params[::4], [10] * len(rows[::4]))


@pytest.mark.parametrize("by", TRUNCATE)
def test_where_min_p_cuts_more_the_ids_that_top_k_kept_do_not_count(by: str) -> None:
    params = [SamplingParams(temperature=1.0, top_k=3, min_p=1.0), SamplingParams(temperature=1.0, top_p=0.98, min_p=1.0)]
    assert_as_on_host(by, torch.tensor([[1.0, 1.0, 5.0, 5.0]] * 2), params, [4] * 2)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("by", TRUNCATE)
def test_logits_that_are_not_finite_are_not_cut_and_have_no_probabilities(by: str, wrong: float) -> None:
    logits = torch.zeros((3, 9))
    logits[0, 3], logits[1], logits[2, 8] = (0.0 if wrong < 0 else wrong), wrong, torch.nan  # the last is no token's
    params = [SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1)] * 3
    given = rules(params, [9, 9, 8])
    cuts = TRUNCATE[by](logits, **given)
    probs = PROBABILITIES[by](logits, temperatures=given["temperatures"], vocab_limits=given["vocab_limits"], cuts=cuts)
    bad = [1] if wrong < 0 else [0, 1]
    assert cuts.logits[bad].tolist() == [-torch.inf] * len(bad) and probs[bad].isnan().all()
    assert probs[2].tolist() == [0.5, 0.5, *[0.0] * 14]


@pytest.mark.parametrize("by", TRUNCATE)
def test_a_row_is_cut_alike_alone_and_among_others(by: str) -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(size=(4, 70)) * 2).float()
    params = [SamplingParams(temperature=0.9, top_p=0.9, top_k=20 * (row % 2)) for row in range(4)]
    params[1], params[2] = SamplingParams(temperature=0.9), SamplingParams()  # these cut nothing
    given = rules(params, [70] * 4)
    together = TRUNCATE[by](logits, **given)
    assert together.logits[1:3].tolist() == [-torch.inf] * 2
    sampled = [0, 1, 3]
    keys = ("temperatures", "vocab_limits")
    cuts = Cuts(*(one[sampled] for one in together))
    all_probs = PROBABILITIES[by](logits[sampled], cuts=cuts, **{key: given[key][sampled] for key in keys})
    for place, row in enumerate(sampled):
        own = logits[row : row + 1].clone()
        alone = TRUNCATE[by](own, **{name: rule[row : row + 1] for name, rule in given.items()})
        assert [one.item() for one in alone] == [one[row].item() for one in together]
        probs = PROBABILITIES[by](own, cuts=alone, **{key: given[key][row : row + 1] for key in keys})
        assert torch.equal(probs[0], all_probs[place])


def test_blocks_of_the_size_that_gpus_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    logits = torch.from_numpy(np.random.default_rng(6).normal(size=(1, 2100)) * 2).float()
    assert_as_on_host("kernel", logits, [SamplingParams(temperature=0.9, top_k=300, top_p=0.9)], [2090])


@pytest.mark.parametrize("by", PROBABILITIES)
def test_without_cuts_it_is_a_softmax(by: str) -> None:
    logits = torch.from_numpy(np.random.default_rng(7).normal(size=(2, 40))).float()
    limits = torch.tensor([40, 33], dtype=torch.int32)
    probs = PROBABILITIES[by](logits, temperatures=torch.tensor([0.5, 2.0], dtype=torch.float64), vocab_limits=limits)
    for row, (temperature, limit) in enumerate(((0.5, 40), (2.0, 33))):
        wanted = torch.zeros(48, dtype=torch.float64)
        wanted[:limit] = torch.softmax(logits[row, :limit].double() / temperature, dim=0)
        torch.testing.assert_close(probs[row], wanted, rtol=0, atol=ROUNDING)


def test_what_no_variant_covers_is_named() -> None:
    params = rules([SamplingParams(temperature=1.0)], [16])
    some = {name: params[name] for name in ("temperatures", "vocab_limits")}
    logits = torch.zeros((1, 16))
    for wrong, message in ((logits.half(), r"torch\.float16"), (torch.zeros((1, 32))[:, ::2], "strides")):
        with pytest.raises(UncoveredCase, match=message):
            truncate(wrong, **params)
        with pytest.raises(UncoveredCase, match=message):
            probabilities(wrong, **some)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_variants_are_told_apart_by_their_case(target: object) -> None:
    for variants in (truncate_variants(target), probabilities_variants(target)):  # type: ignore[arg-type]
        assert [variant.case for variant in variants] == ["float32", "float32, odd vocabulary"]
