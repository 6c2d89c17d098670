from collections.abc import Sequence

import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.randomness import VERIFIER_STREAM
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.legality import LEGAL, allows_adaptive, check_pair, legal_trees
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.registry import AUTO, VERIFIERS
from flexspec.tree_shape import PLAIN, Tree, TreeLimits, TreeSpec

STATIC, ADAPTIVE = TreeSpec(widths=(2, 2, 1)), TreeLimits(depth=8, branch=2, budget=16)
BY_CHANCE = ("mss", "without_replacement", "point_mass", "traversal")
WALKS = ("auto", "greedy", "coupled")


def test_the_table_names_every_verifier() -> None:
    assert set(LEGAL) == {AUTO, *VERIFIERS.names()} == {*BY_CHANCE, *WALKS}


@pytest.mark.parametrize("name", VERIFIERS.names())
def test_verifiers_ask_for_children_that_they_may_be_given(name: str) -> None:
    asked = VERIFIERS.get(name)().children
    check_pair(name, STATIC, asked)
    if allows_adaptive(name):
        assert asked is Children.ANY, "an adaptive tree is pruned by its tokens, which nothing drawn may be"


@pytest.mark.parametrize("name", LEGAL)
def test_legal_pairs_pass(name: str) -> None:
    trees: Sequence[Tree] = (STATIC, PLAIN, ADAPTIVE) if name in WALKS else (STATIC, PLAIN)
    for tree in trees:
        check_pair(name, tree)
        for kind in Children:
            if name in WALKS or kind is not Children.ANY:
                check_pair(name, tree, kind)


@pytest.mark.parametrize("name", BY_CHANCE)
def test_adaptive_trees_are_refused_where_chance_decides(name: str) -> None:
    assert not allows_adaptive(name)
    message = rf"verifier='{name}' does not allow adaptive trees \(.*8 deep.*\[2, 2, 1\].*auto, greedy, coupled$"
    with pytest.raises(UsageError, match=message):
        check_pair(name, ADAPTIVE)


@pytest.mark.parametrize("name", BY_CHANCE)
def test_children_made_with_the_requests_noise_are_refused_where_chance_decides(name: str) -> None:
    message = f"verifier='{name}' does not allow children='any'.*chosen, drawn, distinct, or.*auto, greedy, coupled$"
    with pytest.raises(UsageError, match=message):
        check_pair(name, STATIC, Children.ANY)


def test_unknown_names_list_the_known_ones() -> None:
    for call in (allows_adaptive, legal_trees, lambda name: check_pair(name, STATIC)):
        with pytest.raises(UsageError, match="verifier='best' is unknown: give one of auto, greedy, coupled, mss, "):
            call("best")


def test_a_verifier_that_is_not_in_the_table_is_held_to_the_stricter_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VERIFIERS, "_things", {**VERIFIERS._things, "mine": MssVerifier})
    check_pair("mine", STATIC, Children.DRAWN)
    with pytest.raises(UsageError, match="verifier='mine' does not allow adaptive"):
        check_pair("mine", ADAPTIVE)


@pytest.mark.parametrize("name", ["coupled", *BY_CHANCE])
def test_children_that_know_the_chance_to_come_bias_all_but_the_walk(name: str) -> None:
    """Why `any` is refused: a tree may be made with the noise by which the coupled walk goes, but no other chance."""
    texts = set()
    stream = VERIFIER_STREAM + (name == "traversal")  # that of the visit of the first child
    for seed in range(40):
        sampler = RequestSampler(SamplingParams(temperature=1.0), seed=seed, vocab_limit=2)
        even = torch.zeros(2)
        token = sampler.pick(even, 1) if name == "coupled" else sampler.draws(1, stream).choice(sampler.distribution(even))
        tree = TokenTree(tokens=[0, token], parents=[-1, 0])
        verdict = VERIFIERS.get(name)().verify(tree, lambda node: torch.zeros(2), sampler, 1)
        texts.add(tree.tokens[verdict.path[1]] if len(verdict.path) > 1 else verdict.bonus)
    assert texts == ({0, 1} if name == "coupled" else {0})
