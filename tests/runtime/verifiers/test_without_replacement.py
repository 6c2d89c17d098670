import pytest
import torch

from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.without_replacement import WithoutReplacementVerifier
from oracles.enumerate import law
from oracles.exactness import ROOT, TableSampler, largest_error, step
from oracles.proposals import Propose, distinct, drawn, random_table, to_distribution, tree_of

P = random_table(1, 4)
Q = random_table(5, 4, like=P)


def accepted(propose: Propose) -> float:
    """Chance that a child of the root is accepted."""
    lengths = law(lambda draws: len(step(ROOT, propose, MssVerifier(), torch.tensor, TableSampler(P, draws), draws)))
    return sum(probability for length, probability in lengths.items() if length > len(ROOT) + 1)


@pytest.mark.parametrize("width", [2, 3])
def test_it_accepts_more_than_drawing_with_replacement(width: int) -> None:
    assert accepted(tree_of(distinct, (width,), Q)) > accepted(tree_of(drawn, (width,), Q)) + 0.01


def test_a_drafter_that_runs_out_of_tokens_draws_no_more() -> None:
    narrow = to_distribution([0.0, 1.0, 3.0, 0.0])
    assert largest_error(tree_of(distinct, (4,), lambda text: narrow), WithoutReplacementVerifier(), P, horizon=2) < 1e-12
