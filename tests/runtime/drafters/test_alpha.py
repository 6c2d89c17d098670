"""Alpha is learned from the acceptance that each alpha would have given."""

import numpy as np
import pytest

from flexspec.config import SamplingParams
from flexspec.runtime.candidates import Candidates
from flexspec.runtime.drafters.alpha import LearnedAlpha
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.sampling import RequestSampler
from oracles.decode import Decoding, plain, speculate
from toy_model import ToyModel

VOCAB = 24


class Flattened(ToyModel):
    """The target's logits times `scale`: log p = log q / scale, so that its best tokens are those by log q + scale * noise."""

    scale = 1.0

    def logits_of(self, path):  # type: ignore[no-untyped-def]
        return np.float32(self.scale) * super().logits_of(path)


def one_node(scores: np.ndarray, noise: np.ndarray | None) -> Candidates:
    count = len(scores)
    return Candidates(ids=np.arange(count), scores=scores, noise=noise, nodes=np.zeros(count, np.int64), bounds=(0, count))


def learned(scale: float, params: SamplingParams, *, widths: tuple[int, ...] = (2, 1), steps: int = 40) -> float:
    """Alpha after some steps of four requests, whose text must be plain's."""
    target = ToyModel(vocab_size=VOCAB, seed=4, sharpness=1.5)
    draft = Flattened(vocab_size=VOCAB, seed=4, sharpness=1.5)
    draft.scale = scale
    own = SsmDrafter("toy", draft, max_requests=4, block_size=400)
    assert own.alpha == 0.5
    decodings = [
        Decoding(request_id=seed, text=[seed + 1], sampler=RequestSampler(params, seed=seed, vocab_limit=VOCAB)) for seed in range(4)
    ]
    speculate(target, own, decodings, widths, steps=steps)
    assert decodings[0].text == plain(target, decodings[0].sampler, [1], len(decodings[0].text))
    return own.alpha


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0, 1.5])
def test_a_draft_model_learns_how_far_its_probabilities_are_off(scale: float) -> None:
    assert abs(learned(scale, SamplingParams(temperature=1.0)) - scale) <= 0.3
    assert abs(learned(scale, SamplingParams(temperature=1.0), widths=(1, 1, 1)) - scale) <= 0.3


def test_greedy_requests_teach_nothing() -> None:
    assert learned(1.0, SamplingParams()) == 0.5


@pytest.mark.parametrize("best", [0.0, 0.3, 0.8, 1.0])
def test_it_finds_the_alpha_that_explains_the_tokens_and_follows_a_change(best: float) -> None:
    rng = np.random.default_rng(2)
    alpha = LearnedAlpha()

    def teach(truth: float, count: int) -> None:
        for _ in range(count):
            candidates = one_node(rng.gumbel(size=16), rng.gumbel(size=16))
            alpha.observe(candidates, candidates.best([1], [truth])[0][0][0], 2)

    teach(best, 400)
    assert abs(alpha.value - best) <= 0.1
    teach(1.0 - best, 4000)
    assert abs(alpha.value - (1.0 - best)) <= 0.1


def test_a_few_nodes_do_not_move_it_far() -> None:
    rng = np.random.default_rng(3)
    values = []
    for _ in range(20):
        alpha = LearnedAlpha()
        for _ in range(10):
            candidates = one_node(rng.gumbel(size=16), rng.gumbel(size=16))
            alpha.observe(candidates, int(rng.integers(16)), 2)
        values.append(alpha.value)
    assert all(0.2 <= value <= 0.8 for value in values), values


def test_greedy_nodes_teach_nothing_and_erase_nothing() -> None:
    learned = LearnedAlpha()
    candidates = one_node(np.zeros(3), np.array([0.0, 2.0, 1.0]))
    for _ in range(200):
        learned.observe(candidates, 1, 1)
    before = learned._hits.copy()
    for _ in range(2000):
        learned.observe(one_node(np.zeros(3), None), 1, 1)
    np.testing.assert_array_equal(learned._hits, before)
