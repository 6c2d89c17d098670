import numpy as np
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.trials import residual
from oracles.proposals import to_distribution


def test_acceptance_of_one_chosen_child_is_its_probability() -> None:
    p = to_distribution([0.5, 0.5])
    hits = 0
    for index in range(2000):
        builder = TreeBuilder(0)
        builder.add(0, 1)
        sampler = RequestSampler(SamplingParams(temperature=1.0), seed=3, vocab_limit=2)
        verdict = MssVerifier().verify(builder.build(), lambda node: torch.from_numpy(np.log(p.probs).astype(np.float32)), sampler, index)
        hits += len(verdict.path) - 1
    assert 0.45 < hits / 2000 < 0.55


def test_at_temperature_0_it_is_the_greedy_walk() -> None:
    logits = {0: torch.tensor([0.0, 2.0, 1.0]), 1: torch.tensor([5.0, 0.0, 0.0]), 2: torch.tensor([0.0, 0.0, 1.0])}
    tree = TokenTree(tokens=[0, 1, 2], parents=[-1, 0, 0])
    verdict = MssVerifier().verify(tree, logits.__getitem__, RequestSampler(SamplingParams(), seed=1, vocab_limit=3), 4)
    assert (list(verdict.path), verdict.bonus) == ([0, 1], 0)


def test_a_residual_that_rounding_empties_falls_back() -> None:  # trap 8
    p = to_distribution([1.0, 2.0])
    left, mass = residual(p, 0, p)
    np.testing.assert_array_equal(left.probs, p.probs)
    assert mass == 0
