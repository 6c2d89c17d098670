import numpy as np
import pytest
import torch

from flexspec.runtime.draws import Draws
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.point_mass import PointMassVerifier
from oracles.enumerate import law
from oracles.exactness import ROOT, TableSampler, largest_error, step
from oracles.proposals import Text, chosen, random_table, tree_of

P = random_table(1, 4)
Q = random_table(5, 4, like=P)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_one_of_several_children_is_accepted_with_the_sum_of_their_probabilities(width: int) -> None:
    def program(draws: Draws) -> int:
        return len(step(ROOT, tree_of(chosen, (width,), Q), PointMassVerifier(), torch.tensor, TableSampler(P, draws), draws))

    best = np.argsort(-Q(ROOT).probs)[:width]
    assert abs(law(program)[len(ROOT) + 2] - P(ROOT).probs[best].sum()) < 1e-12


def test_draws_whose_record_is_lost_count_as_chosen() -> None:
    """Exact as well, for any tree that is independent of the verifier's chance; it accepts less."""

    def unrecorded(text: Text, draws: Draws) -> TokenTree:
        tokens = [draws.choice(Q(text)) for _ in range(2)]
        return TokenTree(tokens=[text[-1], *dict.fromkeys(tokens)], parents=[-1, *(0 for _ in dict.fromkeys(tokens))])

    assert largest_error(unrecorded, PointMassVerifier(), P, horizon=2) < 1e-12
