"""The best tokens at a node against sorting the whole row, and against what host drafters choose with the same noise."""

import numpy as np
import pytest
import torch

from flexspec.codegen.cuda.kernels.draft_top import SharedNoise, TopTokens, draft_top, draft_top_reference, draft_top_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget
from flexspec.config import SamplingParams
from flexspec.runtime.sampling import RequestSampler

RUN = {"kernel": draft_top, "reference": draft_top_reference}
SLOTS = torch.tensor([7, -1, 30, 31, 32, 33], dtype=torch.int32)
POSITIONS = torch.tensor([7, 0, 30, 30, 31, 32], dtype=torch.int32)
ROWS = torch.tensor([0, 0, 1, 1, 2, 2], dtype=torch.int32)
TEMPERATURES = torch.tensor([0.7, 0.0, 1.3], dtype=torch.float64)
NOISE = SharedNoise(
    seeds=torch.tensor([3, -5, 2**62]),
    completions=torch.tensor([0, 1, 2], dtype=torch.int32),
    alphas=torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64),
)


def some_logits(columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows with ties across parts of the vocabulary, with what is banned, and with numbers that are not finite."""
    logits = torch.randn((len(SLOTS), columns), generator=torch.Generator().manual_seed(columns)) * 3
    logits[1] = torch.nan  # padding
    logits[2, [columns - 3, 9, columns // 2, columns // 3]] = 20.0
    logits[4, 3:] = -torch.inf
    logits[5, 11] = torch.nan if columns % 2 else torch.inf
    return logits.to(dtype)


def assert_equal(found: TopTokens, wanted: TopTokens) -> None:
    assert found.ids.tolist() == wanted.ids.tolist()
    torch.testing.assert_close(found.log_probs, wanted.log_probs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "dtype", "is_noisy", "is_trimmed"),
    [
        (4103, torch.float32, False, False),
        (4200, torch.bfloat16, False, True),
        (2100, torch.bfloat16, True, False),
        (2071, torch.float32, True, True),
    ],
)
def test_it_is_the_order_of_the_whole_row(columns: int, dtype: torch.dtype, is_noisy: bool, is_trimmed: bool) -> None:
    logits = some_logits(columns, dtype)
    logits[:, columns - 2 :] = torch.nan  # padding of the vocabulary
    token_ids = 3 * torch.arange(columns, dtype=torch.int32) + 5 if is_trimmed else None
    noise = NOISE if is_noisy else None
    arguments = (logits, SLOTS, POSITIONS, ROWS, TEMPERATURES)
    found = draft_top(*arguments, k=4, noise=noise, token_ids=token_ids, num_columns=columns - 2)
    assert_equal(found, draft_top_reference(*arguments, k=4, noise=noise, token_ids=token_ids, num_columns=columns - 2))
    ids = torch.arange(columns) if token_ids is None else token_ids
    assert found.ids[2].tolist() == [ids[9], ids[columns // 3], ids[columns // 2], ids[columns - 3]]
    assert sorted(found.ids[4].tolist()) == [-1, *ids[:3].tolist()]
    assert (found.ids[[1, 5]] == -1).all() and (found.log_probs[[1, 5]] == -torch.inf).all()


@pytest.mark.parametrize("by", RUN)
def test_shares_without_noise_are_the_softmax(by: str) -> None:
    logits = some_logits(500)
    found = RUN[by](logits, SLOTS, POSITIONS, ROWS, TEMPERATURES, k=8)
    for node, temperature in ((0, 0.7), (3, 1.0)):
        shares, ids = torch.log_softmax(logits[node].double() / temperature, 0).sort(descending=True)
        assert found.ids[node].tolist() == ids[:8].tolist()
        torch.testing.assert_close(found.log_probs[node].double(), shares[:8], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("by", "count"), [("kernel", 1), ("reference", 10)])
@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 0.8), (0.7, 1.2), (1.0, 0.0)])
def test_with_noise_it_is_what_a_host_drafter_chooses(alpha: float, temperature: float, by: str, count: int) -> None:
    lifted = 0
    for seed in range(count):
        sampler = RequestSampler(SamplingParams(temperature=temperature), seed=2**63 + seed, vocab_limit=300, completion=2)
        logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, 300)) * 2).float()
        wanted, _ = sampler.perturbed_top(logits[0], 41, 5, alpha)
        one = torch.zeros(1, dtype=torch.int32)
        noise = SharedNoise(torch.tensor([seed - 2**63]), one + 2, torch.tensor([alpha], dtype=torch.float64))
        found = RUN[by](logits, one, one + 40, one, torch.tensor([temperature], dtype=torch.float64), k=5, noise=noise)
        assert found.ids[0].tolist() == wanted.tolist()
        lifted += int(wanted[0] != logits[0].argmax())
        # Sure of the one that the LLM would choose if it were this model.
        if alpha == 1:
            assert (found.log_probs[0].diff() <= 0).all()
    assert by == "kernel" or (lifted > 0) == (temperature > 0)


@pytest.mark.parametrize("by", RUN)
def test_a_tiny_temperature_leaves_the_likeliest(by: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    one = torch.zeros(1, dtype=torch.int32)
    with np.errstate(over="ignore"):
        found = RUN[by](logits, one, one, one, torch.tensor([1e-39], dtype=torch.float64), k=3)
    assert found.ids.tolist() == [[1, 2, 3]]
    torch.testing.assert_close(found.log_probs[0, :2], torch.full((2,), -np.log(2.0)).float())
    assert found.log_probs[0, 2] < -1e9


def test_cases_that_nothing_covers_are_named() -> None:
    logits = some_logits(64)
    rest = (SLOTS, POSITIONS, ROWS, TEMPERATURES)
    with pytest.raises(UncoveredCase, match="float64"):
        draft_top(logits.double(), *rest, k=2)
    with pytest.raises(UncoveredCase, match="k = 9"):
        draft_top(logits, *rest, k=9)
    with pytest.raises(UncoveredCase, match="strides"):
        draft_top(logits[:, :30], *rest, k=2)
    with pytest.raises(UncoveredCase, match="65 of 64 columns"):
        draft_top(logits, *rest, k=2, num_columns=65)
    with pytest.raises(UncoveredCase, match="1 to 524288"):
        draft_top(torch.zeros((1, 600_000)), *rest, k=2)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_variants_have_names_of_their_own(target: GpuTarget) -> None:
    cases = [variant.case for variant in draft_top_variants(target)]
    assert len(set(cases)) == len(cases) == 14
