from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.config import SamplingParams
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers import traversal
from flexspec.runtime.verifiers.base import Verifier
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.traversal import TraversalVerifier
from flexspec.runtime.verifiers.trials import residual
from oracles.block_verification import verify_block
from oracles.enumerate import EnumeratedDraws, law
from oracles.exactness import ROOT, TableSampler, largest_error
from oracles.proposals import KINDS, Propose, Table, Text, distinct, drawn, merged, random_table, to_distribution, tree_of

P = random_table(1, 3, zeros=0.2)
Q = random_table(6, 3, zeros=0.2, like=P)
UNLIKE = random_table(9, 3, zeros=0.2)


def verified(tree: TokenTree, verifier: Verifier, p: Table, draws: Draws) -> tuple[int, Text]:
    """Number of accepted nodes, and the text with them and the bonus token."""
    texts = [ROOT]
    for node in range(1, len(tree.tokens)):
        texts.append((*texts[tree.parents[node]], tree.tokens[node]))
    verdict = verifier.verify(tree, lambda node: torch.tensor(texts[node]), TableSampler(p, draws), len(ROOT))
    return len(verdict.path) - 1, (*texts[verdict.path[-1]], verdict.bonus)


def difference(first: dict[object, float], second: dict[object, float]) -> float:
    return max(abs(first.get(outcome, 0.0) - second.get(outcome, 0.0)) for outcome in first.keys() | second.keys())


def difference_from_block_verification(length: int, p: Table, q: Table) -> float:
    """Of the joint laws of the number of accepted tokens and the text."""

    def ours(draws: EnumeratedDraws) -> tuple[int, Text]:
        return verified(tree_of(drawn, (1,) * length, q)(ROOT, draws), TraversalVerifier(), p, draws)

    def papers(draws: EnumeratedDraws) -> tuple[int, Text]:
        text = ROOT
        for _ in range(length):
            text = (*text, draws.choice(q(text)))
        return verify_block(ROOT, text[len(ROOT) :], p, q, draws)

    return difference(law(ours, limit=2000), law(papers, limit=2000))


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("q", [Q, UNLIKE], ids=["alike", "unlike"])
def test_on_a_chain_it_is_block_verification(length: int, q: Table) -> None:
    assert difference_from_block_verification(length, P, q) < 1e-12


WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=3, max_size=3).filter(any)


@settings(max_examples=60, deadline=None)
@given(p=st.tuples(WEIGHTS, WEIGHTS), q=st.tuples(WEIGHTS, WEIGHTS))
def test_on_any_chain_it_is_block_verification(p: Sequence[list[float]], q: Sequence[list[float]]) -> None:
    llm, ssm = ([to_distribution(row) for row in rows] for rows in (p, q))
    assert difference_from_block_verification(2, lambda text: llm[text[-1] % 2], lambda text: ssm[text[-1] % 2]) < 1e-12


def mean_accepted(propose: Propose, verifier: Verifier, p: Table) -> float:
    outcomes = law(lambda draws: verified(propose(ROOT, draws), verifier, p, draws), limit=10_000)
    return sum(accepted * probability for (accepted, _), probability in outcomes.items())


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("kind", ["drawn", "distinct"])
def test_it_accepts_more_than_trying_from_the_root_down(kind: str, shape: Sequence[int]) -> None:
    propose = tree_of(KINDS[kind], shape, Q)
    assert mean_accepted(propose, TraversalVerifier(), P) > mean_accepted(propose, MssVerifier(), P) + 1e-3


def test_of_a_single_level_it_accepts_the_same_as_trying_one_by_one() -> None:
    propose = tree_of(distinct, (2,), Q)
    assert mean_accepted(propose, TraversalVerifier(), P) == pytest.approx(mean_accepted(propose, MssVerifier(), P), abs=1e-12)


def test_a_model_that_drafts_for_itself_is_accepted_whole() -> None:
    for shape in [(1, 1, 1), (2, 1)]:
        assert mean_accepted(tree_of(distinct, shape, P), TraversalVerifier(), P) == pytest.approx(len(shape), abs=1e-12)


def test_logits_are_asked_for_only_where_they_matter() -> None:
    asked: list[int] = []

    def logits(node: int) -> torch.Tensor:
        asked.append(node)
        return torch.tensor([0.0, -torch.inf, 0.0])

    # Node 1 cannot be emitted, so nothing below it matters; node 3 is a leaf, of use only if it is accepted.
    tree = TokenTree(tokens=[0, 1, 2, 2], parents=[-1, 0, 1, 0], draws={0: [Draw(node=1, q=None), Draw(node=3, q=None)]})
    ends = set()
    for index in range(20):
        asked.clear()
        sampler = RequestSampler(SamplingParams(temperature=1.0), seed=1, vocab_limit=3)
        verdict = TraversalVerifier().verify(tree, logits, sampler, index)
        assert asked == list(verdict.path)
        ends.add((tuple(verdict.path), verdict.bonus))
    assert ends == {((0, 3), 0), ((0, 3), 2), ((0,), 0)}


def test_trees_may_be_deep() -> None:
    depth = 2000
    tree = TokenTree(tokens=[0] * (depth + 1), parents=range(-1, depth))
    sampler = RequestSampler(SamplingParams(temperature=1.0), seed=1, vocab_limit=2)
    verdict = TraversalVerifier().verify(tree, lambda node: torch.tensor([50.0, 0.0]), sampler, 1)
    assert list(verdict.path) == list(range(depth + 1)) and verdict.bonus == 0


def test_at_temperature_0_it_is_the_greedy_walk() -> None:
    logits = {0: torch.tensor([0.0, 2.0, 1.0]), 1: torch.tensor([5.0, 0.0, 0.0]), 2: torch.tensor([0.0, 0.0, 1.0])}
    tree = TokenTree(tokens=[0, 1, 2], parents=[-1, 0, 0])
    verdict = TraversalVerifier().verify(tree, logits.__getitem__, RequestSampler(SamplingParams(), seed=1, vocab_limit=3), 4)
    assert (list(verdict.path), verdict.bonus) == ([0, 1], 0)


def test_a_second_trial_of_a_token_does_not_use_its_subtree_again() -> None:
    def forgetful(tree: TokenTree, node: int, children: Sequence[dict[int, int]]) -> Sequence[Draw]:
        trials = list(tree.draws.get(node, ()))
        if node == 0:  # a copy of each family for each trial of its token, as if the draws were fresh
            return trials
        return trials * 2

    propose = tree_of(drawn, (2, 1), Q)
    assert largest_error(propose, TraversalVerifier(), P, horizon=3) < 1e-12
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traversal, "trials_at", forgetful)
        assert largest_error(propose, TraversalVerifier(), P, horizon=3) > 1e-3


@pytest.mark.parametrize("wrong", [lambda left, owed: left, lambda left, owed: owed, lambda left, owed: left / (left + owed)])
def test_a_wrong_debt_after_a_failed_trial_is_noticed(wrong, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def fail(visit: traversal._Visit) -> None:
        assert visit.p is not None
        visit.p, left = residual(visit.p, visit.token, visit.q, visit.owed)
        visit.owed = wrong(left, visit.owed) if visit.node else 1.0

    monkeypatch.setattr(traversal._Visit, "fail", fail)
    assert largest_error(tree_of(distinct, (2, 1), Q), TraversalVerifier(), P, horizon=3) > 1e-3


def test_families_of_two_drafters_at_one_child_stay_exact() -> None:
    def doubled(text: Text, draws: Draws) -> TokenTree:
        builder = TreeBuilder(text[-1])
        for source in (Q, UNLIKE):
            token = draws.choice(source(text))
            child = builder.add(0, token, source(text))
            below = (*text, token)
            builder.add(child, draws.choice(source(below)), source(below))
        return builder.build()

    assert largest_error(doubled, TraversalVerifier(), P, horizon=3) < 1e-12
    assert largest_error(merged(tree_of(distinct, (2,), Q), tree_of(distinct, (2, 1), UNLIKE)), TraversalVerifier(), P, horizon=3) < 1e-12
