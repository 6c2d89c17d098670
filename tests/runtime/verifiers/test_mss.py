from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers import mss
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.trials import residual
from oracles.exactness import Propose, Text, chosen_tree, drawn_tree, largest_error, merged, random_table, to_distribution

EXACT = 1e-12
WRONG = 1e-3

P = random_table(1, 3, zeros=0.2)
Q = random_table(2, 3, zeros=0.2, like=P)
Q2 = random_table(3, 3, zeros=0.2)


@pytest.mark.parametrize("widths", [(1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (1, 1, 1)], ids=str)
def test_drawn_trees_are_exact(widths: tuple[int, ...]) -> None:
    assert largest_error(drawn_tree(widths, Q), MssVerifier(), P, horizon=len(widths) + 1) < EXACT


@pytest.mark.parametrize("widths", [(1,), (2,), (3,), (2, 1), (1, 2, 1)], ids=str)
def test_chosen_trees_are_exact(widths: tuple[int, ...]) -> None:
    assert largest_error(chosen_tree(widths, Q), MssVerifier(), P, horizon=len(widths) + 1) < EXACT


def test_a_tree_of_the_root_alone_is_plain_sampling() -> None:
    assert largest_error(lambda text, draws: TokenTree.root(text[-1]), MssVerifier(), P, horizon=1) < EXACT


@pytest.mark.parametrize(
    "propose",
    [
        merged(drawn_tree((1, 1), Q), chosen_tree((2, 1), Q2)),
        merged(chosen_tree((1, 1), Q2), drawn_tree((1, 1), Q)),
        merged(drawn_tree((1, 1), Q), drawn_tree((1,), Q2)),
    ],
    ids=["drawn, chosen", "chosen, drawn", "drawn, drawn"],
)
def test_merged_drafters_are_exact(propose: Propose) -> None:
    assert largest_error(propose, MssVerifier(), P, horizon=3) < EXACT


@pytest.mark.parametrize("propose", [drawn_tree((1,), Q), drawn_tree((2,), Q), merged(drawn_tree((1,), Q), chosen_tree((1, 1), Q2))])
def test_two_steps_in_a_row_are_exact(propose: Propose) -> None:
    assert largest_error(propose, MssVerifier(), P, horizon=3, steps=2) < EXACT


@settings(max_examples=60, deadline=None)
@given(
    p=st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=4, max_size=4).filter(any),
    q=st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=4, max_size=4).filter(any),
    width=st.integers(1, 2),
)
def test_any_pair_of_distributions_is_exact(p: list[float], q: list[float], width: int) -> None:
    llm, ssm = to_distribution(p), to_distribution(q)
    assert largest_error(drawn_tree((width,), lambda text: ssm), MssVerifier(), lambda text: llm, horizon=2) < EXACT
    assert largest_error(chosen_tree((width,), lambda text: ssm), MssVerifier(), lambda text: llm, horizon=2) < EXACT


@pytest.mark.parametrize("width", [1, 2, 4])
def test_vocabulary_8_at_temperature_07_and_top_p_09(width: int) -> None:  # CASES.md, row 3
    params = SamplingParams(temperature=0.7, top_p=0.9)
    real = RequestSampler(params, seed=0, vocab_limit=8)
    llm, ssm = ({text: _logits(seed, text) for text in [(0,), *((0, token) for token in range(8))]} for seed in (5, 6))
    p = {text: real.distribution(logits) for text, logits in llm.items()}
    q = {text: real.distribution(logits) for text, logits in ssm.items()}
    assert 3 <= len(p[(0,)].ids) < 8 and 3 <= len(q[(0,)].ids) < 8
    assert largest_error(drawn_tree((width,), q.__getitem__), MssVerifier(), p.__getitem__, horizon=2) < EXACT


def _logits(seed: int, text: Text) -> torch.Tensor:
    return torch.from_numpy((1.5 * np.random.default_rng([seed, *text]).standard_normal(8)).astype(np.float32))


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


def _retried(change: Callable[[list[Draw], TokenTree, Text], list[Draw]]) -> Propose:
    """Two drawn children a node, with the record of the trials falsified."""
    honest = drawn_tree((2,), Q)

    def propose(text: Text, draws: Draws) -> TokenTree:
        tree = honest(text, draws)
        return TokenTree(tokens=tree.tokens, parents=tree.parents, draws={0: change(tree.draws[0], tree, text)})

    return propose


def _untempered(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    return [Draw(node=trial.node, q=to_distribution(np.sqrt([Q(text).prob(token) for token in range(3)]).tolist())) for trial in trials]


def _folded(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    return list({trial.node: trial for trial in trials}.values())


def _likeliest_first(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    return sorted(trials, key=lambda trial: -P(text).prob(tree.tokens[trial.node]))


def _unlikely_dropped(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    return [trial for trial in trials if Q(text).prob(tree.tokens[trial.node]) > 0.3]


@pytest.mark.parametrize("mutant", [_untempered, _folded, _likeliest_first, _unlikely_dropped])
def test_a_false_record_of_the_draws_is_noticed(mutant: Callable[[list[Draw], TokenTree, Text], list[Draw]]) -> None:
    assert largest_error(_retried(lambda trials, tree, text: trials), MssVerifier(), P, horizon=1) < EXACT
    assert largest_error(_retried(mutant), MssVerifier(), P, horizon=1) > WRONG


def test_a_chosen_child_taken_for_a_sample_is_noticed() -> None:
    def propose(text: Text, draws: Draws) -> TokenTree:
        tree = chosen_tree((1,), Q)(text, draws)
        return TokenTree(tokens=tree.tokens, parents=tree.parents, draws={0: [Draw(node=1, q=Q(text))]})

    assert largest_error(propose, MssVerifier(), P, horizon=1) > WRONG


def _softmaxed(p: Distribution, token: int, q: Distribution | None) -> Distribution:
    left = np.exp(np.maximum(p.probs - [0.0 if q is None else q.prob(int(other)) for other in p.ids], 0.0))
    return Distribution(ids=p.ids, probs=left / left.sum())


def _unchanged(p: Distribution, token: int, q: Distribution | None) -> Distribution:
    return p


@pytest.mark.parametrize("mutant", [_softmaxed, _unchanged])
def test_a_wrong_residual_is_noticed(mutant: Callable[..., Distribution], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mss, "residual", lambda p, token, q: (mutant(p, token, q), 1.0))
    assert largest_error(drawn_tree((1,), Q), MssVerifier(), P, horizon=1) > WRONG
