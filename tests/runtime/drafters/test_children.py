"""Children are what the verifier asks for, under the rules of their own path."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from toy_model import ToyModel

VOCAB = 12
SAMPLED = SamplingParams(temperature=1.0)
MODEL = ToyModel(vocab_size=VOCAB, seed=4, sharpness=1.0)


def propose(children: Children, tree: Tree, sampler: RequestSampler, *, alpha: float | None = 0.5) -> TokenTree:
    drafter = SsmDrafter("toy", MODEL, max_requests=1, block_size=200, alpha=alpha)
    return drafter.propose([DraftRequest(request_id=0, tokens=[1, 2], sampler=sampler, spec=tree, children=children)])[0]


def sampler(params: SamplingParams = SAMPLED, **options) -> RequestSampler:
    return RequestSampler(params, seed=3, vocab_limit=VOCAB, **options)


def by_q(path: Sequence[int]) -> list[int]:
    return np.argsort(-MODEL.logits_of(path), kind="stable").tolist()


def test_any_children_are_the_best_with_the_noise_counted_in() -> None:
    tree = propose(Children.ANY, TreeSpec(widths=(3, 1)), sampler())
    expected = sampler().perturbed_top(torch.from_numpy(MODEL.logits_of([1, 2])), 2, 3, 0.5)[0].tolist()
    assert list(tree.children()[0]) == expected != by_q([1, 2])[:3]


def test_chosen_children_are_the_likeliest_without_noise() -> None:
    tree = propose(Children.CHOSEN, TreeSpec(widths=(3, 2)), sampler())
    assert list(tree.children()[0]) == by_q([1, 2])[:3]
    for token, node in tree.children()[0].items():
        assert list(tree.children()[node]) == by_q([1, 2, token])[:2]
    assert all(trial.q is None for trials in tree.draws.values() for trial in trials)


def test_distinct_children_carry_what_was_left_of_q() -> None:
    tree = propose(Children.DISTINCT, TreeSpec(widths=(5, 1)), sampler())
    left = sampler().distribution(torch.from_numpy(MODEL.logits_of([1, 2])))
    tokens = [tree.tokens[draw.node] for draw in tree.draws[0]]
    assert len(set(tokens)) == len(tokens) == 5
    for draw, token in zip(tree.draws[0], tokens, strict=True):
        assert draw.q is not None and left is not None
        np.testing.assert_array_equal(draw.q.ids, left.ids)
        np.testing.assert_allclose(draw.q.probs, left.probs, rtol=1e-12)
        left = left.without(token)


def test_distinct_children_end_with_the_support() -> None:
    tree = propose(Children.DISTINCT, TreeSpec(widths=(5, 5)), sampler(SamplingParams(temperature=1.0, top_k=2)))
    assert tree.num_drafted == 2 + 4


@pytest.mark.parametrize("children", Children)
def test_nothing_is_drawn_at_temperature_0(children: Children) -> None:
    tree = propose(children, TreeSpec(widths=(2, 1)), sampler(SamplingParams()))
    assert list(tree.children()[0]) == by_q([1, 2])[:2]


class OnlyAfter:
    """Allows the token that is one more than the last of the path, and at the root only 5 and 9."""

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def apply(self, logits, path) -> None:  # type: ignore[no-untyped-def]
        allowed = [(path[-1] + 1) % VOCAB] if path else [5, 9]
        logits[[token for token in range(len(logits)) if token not in allowed]] = -np.inf


@pytest.mark.parametrize("children", Children)
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, SamplingParams(temperature=1.0, top_p=0.9)], ids=["0", "1", "top_p"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, None])
def test_rules_see_the_path_of_each_node(children: Children, params: SamplingParams, alpha: float | None) -> None:
    trees: list[Tree] = [TreeSpec(widths=(3, 2, 2))]
    if children is Children.ANY:
        trees.append(TreeLimits(depth=3, branch=3, budget=20))
    for tree in trees:
        found = propose(children, tree, sampler(params, rules=[OnlyAfter()]), alpha=alpha)
        assert found.num_drafted >= 3
        for node in range(1, len(found.tokens)):
            parent = found.parents[node]
            assert found.tokens[node] in ([found.tokens[parent] + 1] if parent else [5, 9])


class NothingAfter9(OnlyAfter):
    """Allows nothing after token 9."""

    def apply(self, logits, path) -> None:  # type: ignore[no-untyped-def]
        super().apply(logits, path)
        if path and path[-1] == 9:
            logits[:] = -np.inf


@pytest.mark.parametrize("children", Children)
def test_a_path_after_which_nothing_is_allowed_ends(children: Children) -> None:
    tree = propose(children, TreeSpec(widths=(20, 1)), sampler(rules=[NothingAfter9()]))
    below = tree.children()
    assert {token: list(below[node]) for token, node in below[0].items()} == {5: [6], 9: []}
