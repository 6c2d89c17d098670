"""From the engine, with a draft model and every verifier, come two tokens with exactly the target's joint distribution."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from flexspec.checking.goodness_of_fit import Tokens, count_cells, p_value
from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec
from oracles.proposals import to_distribution
from toy_model import Float32, ToyModel

VOCAB = 6
PROMPT = (1, 2)
SURE, RARE = 3, 4
RARITY, BIAS = 0.005, 0.02
DRAWS_OF_SEEDS = 5
VERIFIERS = ("coupled", "mss", "without_replacement", "point_mass", "traversal")
# Each set of seeds and all of them together, the first token alone and both.
TESTS = len(VERIFIERS) * (DRAWS_OF_SEEDS + 1) * 2
THRESHOLD = 0.01 / TESTS


class Pair(ToyModel):
    """Target and draft: `SURE` follows the prompt, so that the tokens after it are the first to vary and come from trees.

    Args:
        noise: the share of texts on which a draft disagrees with the target.
        bias: is added to the probability of `RARE` after everything else.
    """

    def __init__(self, *, noise: float = 0.0, bias: float = 0.0) -> None:
        super().__init__(vocab_size=VOCAB, seed=8, sharpness=1.0, noise=noise, max_pass_tokens=1024)
        self._bias = bias
        self._known: dict[Tokens, Float32] = {}

    def logits_of(self, path: Sequence[int]) -> Float32:
        text = tuple(int(token) for token in path)
        if text not in self._known:
            self._known[text] = self._logits_of(text)
        return self._known[text]

    def _logits_of(self, text: Tokens) -> Float32:
        if text == PROMPT:
            return np.where(np.arange(VOCAB) == SURE, 0.0, -100.0).astype(np.float32)
        logits = super().logits_of(text).astype(np.float64)
        logits[RARE] = np.log(RARITY / (1 - RARITY) * np.exp(np.delete(logits, RARE)).sum())
        probs = np.exp(logits) / np.exp(logits).sum()
        probs[RARE] += self._bias
        return np.log(probs).astype(np.float32)


def target_distribution(prefix: Tokens) -> Distribution:
    logits = Pair().logits_of((*PROMPT, SURE, *prefix))
    return to_distribution(np.exp(logits.astype(np.float64)).tolist())


def sampled(verifier: str, target: ToyModel, seeds: range, widths: tuple[int, ...]) -> list[Tokens]:
    """The two tokens after the sure one; one more follows, so that a tree may be two levels deep."""
    drafter = SsmDrafter("ssm", Pair(noise=0.4), max_requests=64, block_size=32)
    engine = Engine(target, drafters=[drafter], verifier_name=verifier, tree=TreeSpec(widths=widths), max_batch=64, max_len=16)
    outputs = engine.generate([PROMPT] * len(seeds), [SamplingParams(temperature=1.0, max_tokens=4, seed=seed) for seed in seeds])
    accepted = sum(output.stats.accepted for output in outputs)
    assert 0.1 * len(seeds) < accepted < 0.9 * sum(output.stats.drafted for output in outputs)
    assert all(output.token_ids[0] == SURE for output in outputs)
    return [tuple(output.token_ids[1:3]) for output in outputs]


def p_values(sets: Sequence[list[Tokens]]) -> list[float]:
    """Of every set of samples and all together, the first token alone and both."""
    everything = [sample for samples in sets for sample in samples]
    found = []
    for samples in [*sets, everything]:
        for depth in (1, 2):
            cells = count_cells(samples, cache(target_distribution), depth)
            assert cells.impossible == 0
            value, count = p_value(cells)
            assert count >= 4 * depth
            found.append(value)
    return found


def sets_of_samples(verifier: str, target: ToyModel, size: int, widths: tuple[int, ...]) -> list[list[Tokens]]:
    first = 1_000_000 * VERIFIERS.index(verifier)
    seeds = range(first, first + size * DRAWS_OF_SEEDS)
    samples = sampled(verifier, target, seeds, widths)
    return [samples[start : start + size] for start in range(0, len(samples), size)]


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_two_tokens_have_the_targets_joint_distribution(verifier: str) -> None:
    assert min(p_values(sets_of_samples(verifier, Pair(), 220, (2, 1)))) > THRESHOLD


@pytest.mark.parametrize("verifier", [pytest.param(name, marks=[] if name == "mss" else pytest.mark.slow) for name in VERIFIERS])
def test_a_bias_of_002_is_noticed(verifier: str) -> None:
    assert min(p_values(sets_of_samples(verifier, Pair(bias=BIAS), 220, (2, 1)))) < THRESHOLD / 100


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(1, 1), (3,)], ids=str)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_many_samples_have_the_targets_joint_distribution(verifier: str, widths: tuple[int, ...]) -> None:
    assert min(p_values(sets_of_samples(verifier, Pair(), 1000, widths))) > THRESHOLD / 2
