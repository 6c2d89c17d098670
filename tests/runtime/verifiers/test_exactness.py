"""Every legal pair of a discrete verifier and a kind of tree emits the LLM's own distribution: all outcomes enumerated."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.runtime.drafters.base import Children
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verifier
from flexspec.runtime.verifiers.legality import legal_trees
from flexspec.runtime.verifiers.registry import VERIFIERS
from oracles.exactness import largest_error
from oracles.proposals import KINDS, Propose, Table, Text, merged, random_table, to_distribution, tree_of

EXACT = 1e-12
DISCRETE = ("mss", "without_replacement", "point_mass", "traversal")
PAIRS = [(verifier, children.value) for verifier in DISCRETE for children in Children if children in legal_trees(verifier).children]
SHAPES = [(1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (1, 1, 1)]

P = random_table(1, 3, zeros=0.2)
Q = random_table(6, 3, zeros=0.2, like=P)
Q2 = random_table(4, 3)
NARROW = random_table(3, 3, zeros=0.6)
MERGES = {
    "drawn, chosen": lambda shape: merged(tree_of(KINDS["drawn"], shape, Q), tree_of(KINDS["chosen"], (2, 1), Q2)),
    "chosen, drawn": lambda shape: merged(tree_of(KINDS["chosen"], (1, 1), Q2), tree_of(KINDS["drawn"], shape, Q)),
    "drawn, drawn": lambda shape: merged(tree_of(KINDS["drawn"], shape, Q), tree_of(KINDS["drawn"], (1,), Q2)),
    "distinct, chosen": lambda shape: merged(tree_of(KINDS["distinct"], shape, Q), tree_of(KINDS["chosen"], (1, 1), Q2)),
    "distinct, distinct": lambda shape: merged(tree_of(KINDS["distinct"], shape, Q), tree_of(KINDS["distinct"], (2,), NARROW)),
}


def verifier_of(name: str) -> Verifier:
    return VERIFIERS.get(name)()


def test_all_kinds_of_children_are_enumerated() -> None:
    assert {kind for _, kind in PAIRS} == set(KINDS)
    assert len(PAIRS) == len(DISCRETE) * len(KINDS)
    assert len(Q((0,)).ids) == 3, "the root's draws are to have all outcomes"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("verifier", "kind"), PAIRS)
def test_static_trees_are_exact(verifier: str, kind: str, shape: Sequence[int]) -> None:
    assert largest_error(tree_of(KINDS[kind], shape, Q), verifier_of(verifier), P, horizon=len(shape) + 1) < EXACT


@pytest.mark.parametrize(("verifier", "kind"), PAIRS)
def test_branches_that_go_on_as_chains_are_exact(verifier: str, kind: str) -> None:
    assert largest_error(tree_of(KINDS[kind], (2, 1, 1), NARROW), verifier_of(verifier), P, horizon=4) < EXACT


@pytest.mark.parametrize("verifier", DISCRETE)
def test_a_tree_of_the_root_alone_is_plain_sampling(verifier: str) -> None:
    assert largest_error(lambda text, draws: TokenTree.root(text[-1]), verifier_of(verifier), P, horizon=1) < EXACT


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("verifier", DISCRETE)
def test_merged_drafters_are_exact(verifier: str, merge: str) -> None:
    assert largest_error(MERGES[merge]((1, 1)), verifier_of(verifier), P, horizon=3) < EXACT


@pytest.mark.parametrize(
    "propose",
    [
        tree_of(KINDS["drawn"], (1, 1), NARROW),
        tree_of(KINDS["distinct"], (2,), Q),
        merged(tree_of(KINDS["drawn"], (1,), Q), tree_of(KINDS["chosen"], (1, 1), Q2)),
    ],
    ids=["drawn", "distinct", "drawn, chosen"],
)
@pytest.mark.parametrize("verifier", DISCRETE)
def test_two_steps_in_a_row_are_exact(verifier: str, propose: Propose) -> None:
    assert largest_error(propose, verifier_of(verifier), P, horizon=3, steps=2) < EXACT


WEIGHTS = st.sampled_from([0.0, 0.0, 1e-9, 0.1, 1.0, 1.0, 3.0])
ROWS = st.lists(st.lists(WEIGHTS, min_size=3, max_size=3).filter(any), min_size=4, max_size=4)


def by_last_token(rows: Sequence[Sequence[float]]) -> Table:
    """One distribution for the root, and one after each token."""
    distributions = [to_distribution(row) for row in rows]

    def table(text: Text) -> object:
        return distributions[0 if len(text) == 1 else 1 + text[-1]]

    return table  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(p=ROWS, q=ROWS, shape=st.sampled_from([(2,), (1, 1), (2, 1)]), kind=st.sampled_from(sorted(KINDS)))
def test_any_distributions_are_exact(p: list[list[float]], q: list[list[float]], shape: tuple[int, ...], kind: str) -> None:
    propose, llm = tree_of(KINDS[kind], shape, by_last_token(q)), by_last_token(p)
    for verifier in ("traversal", "mss"):
        assert largest_error(propose, verifier_of(verifier), llm, horizon=len(shape) + 1) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 1, 1), (3, 1), (2, 2), (4,)], ids=str)
@pytest.mark.parametrize(("verifier", "kind"), PAIRS)
def test_larger_trees_and_vocabularies_are_exact(verifier: str, kind: str, shape: Sequence[int]) -> None:
    llm = random_table(7, 4, zeros=0.1)
    ssm = random_table(8, 4, zeros=0.3) if (len(shape) == 3 and shape[0] > 1) or shape == (2, 2) else random_table(8, 4)
    assert largest_error(tree_of(KINDS[kind], shape, ssm), verifier_of(verifier), llm, horizon=len(shape) + 1, limit=20_000) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("verifier", DISCRETE)
def test_larger_merges_are_exact_over_two_steps(verifier: str, merge: str) -> None:
    assert largest_error(MERGES[merge]((2,)), verifier_of(verifier), P, horizon=3, steps=2, limit=20_000) < EXACT


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    p=ROWS,
    q=ROWS,
    shape=st.sampled_from([(1, 1, 1), (2, 1), (3,), (1, 2), (2, 2)]),
    kind=st.sampled_from(sorted(KINDS)),
    steps=st.integers(1, 2),
)
def test_any_distributions_are_exact_in_larger_trees(
    p: list[list[float]], q: list[list[float]], shape: tuple[int, ...], kind: str, steps: int
) -> None:
    propose, llm = tree_of(KINDS[kind], shape, by_last_token(q)), by_last_token(p)
    steps = steps if len(shape) == 1 else 1
    for verifier in ("traversal", "mss"):
        assert largest_error(propose, verifier_of(verifier), llm, horizon=len(shape) + 1, steps=steps, limit=20_000) < EXACT
