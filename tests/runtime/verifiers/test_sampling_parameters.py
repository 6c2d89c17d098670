"""Every sampling parameter acts at every node on that node's own ancestors, and verification stays exact with it."""

from functools import cache, partial

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from flexspec.runtime.verifiers.registry import VERIFIERS
from oracles.exactness import ROOT, largest_error
from oracles.parameters import GivenDraws, NeverTwice, reference_distribution, sampler_for
from oracles.proposals import KINDS, Propose, Table, Text, merged, random_table, to_distribution, tree_of

VOCAB, END = 4, 3
EXACT, WRONG = 1e-12, 1e-3
# What each verifier asks drafters for.
ASKED = {"mss": "drawn", "without_replacement": "distinct", "point_mass": "chosen", "traversal": "distinct"}


def halved_after_a_zero(tokens: list[int], logits: torch.Tensor) -> torch.Tensor:
    """A user's processor that looks at the whole text."""
    return logits / 2 if tokens[-1] == 0 else logits + torch.tensor([1.0, 0.0, 0.0, 0.0])


# Numbers are such that float32 has them exactly.
PER_TEXT = {
    "temperature": SamplingParams(temperature=0.7),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
    "logit_bias": SamplingParams(temperature=1.0, logit_bias={0: 1.5, 1: -100, 2: -0.5}),
    "temperature, top_k, top_p and min_p": SamplingParams(temperature=1.3, top_k=3, top_p=0.95, min_p=0.05),
}
PER_NODE = {
    "presence and frequency penalty": SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.75),
    "repetition penalty": SamplingParams(temperature=1.0, repetition_penalty=2.0),
    "min_tokens": SamplingParams(temperature=1.0, min_tokens=2),
    "logits processor": SamplingParams(temperature=1.0, logits_processors=halved_after_a_zero),
    "grammar": SamplingParams(temperature=1.0, grammar=NeverTwice(VOCAB, (END,))),
    "everything": SamplingParams(
        temperature=0.8, top_k=3, top_p=0.95, min_p=0.02, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=0.5,
        logit_bias={1: 0.5}, logits_processors=halved_after_a_zero, min_tokens=2,
    ),
}  # fmt: skip


@cache
def logits_after(text: Text) -> torch.Tensor:
    return torch.from_numpy((np.random.default_rng([9, *text, 1]).integers(-12, 12, VOCAB) / 8).astype(np.float32))


def reference(params: SamplingParams) -> Table:
    return cache(lambda text: reference_distribution(params, logits_after(text).tolist(), text, (END,)))


def error(
    params: SamplingParams, verifier: str, propose: Propose, *, horizon: int, steps: int = 1, kind: type[GivenDraws] = GivenDraws
) -> float:
    def make_sampler(text: Text, draws: Draws) -> GivenDraws:
        return sampler_for(params, vocab=VOCAB, ends=(END,), text=text, draws=draws, kind=kind)

    return largest_error(
        propose, VERIFIERS.get(verifier)(), reference(params), horizon=horizon, steps=steps, logits=logits_after, make_sampler=make_sampler
    )


Q = random_table(10, VOCAB, zeros=0.6)
LIKELY = random_table(4, VOCAB, zeros=0.7)


@pytest.mark.parametrize("name", [*PER_TEXT, *PER_NODE])
@pytest.mark.parametrize("verifier", ASKED)
def test_trees_are_exact_with_every_parameter(verifier: str, name: str) -> None:
    params = (PER_TEXT | PER_NODE)[name]
    assert error(params, verifier, tree_of(KINDS[ASKED[verifier]], (2, 1), Q), horizon=3) < EXACT


@pytest.mark.parametrize("name", PER_NODE)
@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_two_steps_of_merged_drafters_are_exact_with_every_parameter(verifier: str, name: str) -> None:
    propose = merged(tree_of(KINDS["distinct"], (1,), LIKELY), tree_of(KINDS["chosen"], (1, 1), Q))
    assert error(PER_NODE[name], verifier, propose, horizon=3, steps=2) < EXACT


class ForgetsThePath(GivenDraws):
    def distribution(self, logits: torch.Tensor, path: object = ()) -> Distribution:
        return super().distribution(logits)


@pytest.mark.parametrize("name", PER_NODE)
@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_parameters_that_see_the_committed_text_alone_are_noticed(verifier: str, name: str) -> None:  # trap 6
    params = PER_NODE[name]
    # What the model drafts for itself is accepted, so that there is a path.
    propose = tree_of(KINDS[ASKED[verifier]], (2, 1), reference(params))
    assert error(params, verifier, propose, horizon=3, kind=ForgetsThePath) > WRONG


class RawBonus(GivenDraws):
    """The bonus token is drawn from the model's own softmax."""

    def distribution(self, logits: torch.Tensor, path: object = ()) -> Distribution:
        self._raw = to_distribution(torch.softmax(logits.double(), 0).tolist())
        return super().distribution(logits, path)  # type: ignore[arg-type]

    def draws(self, index: int, stream: int = 0) -> Draws:
        return _OtherChoice(self, self.given)


class _OtherChoice:
    def __init__(self, sampler: RawBonus, draws: Draws) -> None:
        self._sampler = sampler
        self.bernoulli = draws.bernoulli
        self._choice = draws.choice

    def choice(self, distribution: Distribution) -> int:
        return self._choice(self._sampler._raw)


@pytest.mark.parametrize("name", [*PER_TEXT, *PER_NODE])
@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_a_bonus_token_from_the_unprocessed_distribution_is_noticed(verifier: str, name: str) -> None:  # trap 7
    params = (PER_TEXT | PER_NODE)[name]
    # What the model drafts for itself is always accepted, so only the bonus token can be wrong.
    propose = tree_of(KINDS["distinct"], (1,), reference(params))
    assert error(params, verifier, propose, horizon=2) < EXACT
    assert error(params, verifier, propose, horizon=2, kind=RawBonus) > WRONG


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("verifier", ASKED)
def test_vocabulary_8_at_temperature_07_and_top_p_09(verifier: str, width: int) -> None:  # case 3
    params = SamplingParams(temperature=0.7, top_p=0.9)

    @cache
    def logits(seed: int, text: Text) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng([seed, *text, 1]).standard_normal(8).astype(np.float32))

    @cache
    def distribution(seed: int, text: Text) -> Distribution:
        return reference_distribution(params, logits(seed, text).tolist(), text, ())

    def make_sampler(text: Text, draws: Draws) -> GivenDraws:
        return sampler_for(params, vocab=8, ends=(), text=text, draws=draws)

    p, q = partial(distribution, 5), partial(distribution, 27)
    assert 3 <= len(p(ROOT).ids) < 8 and len(q(ROOT).ids) == 3 and set(q(ROOT).ids) < set(p(ROOT).ids)
    verified = VERIFIERS.get(verifier)()
    propose = tree_of(KINDS[ASKED[verifier]], (width,), q)
    assert largest_error(propose, verified, p, horizon=2, logits=partial(logits, 5), make_sampler=make_sampler) < EXACT
