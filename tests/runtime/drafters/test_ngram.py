import cProfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import is_well_formed
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from oracles.decode import Decoding, plain, speculate
from toy_model import ToyModel

SAMPLER = RequestSampler(SamplingParams(), seed=0, vocab_limit=100)


def request(tokens: list[int], widths: tuple[int, ...], request_id: int = 0) -> DraftRequest:
    return DraftRequest(request_id=request_id, tokens=tokens, sampler=SAMPLER, spec=TreeSpec(widths=widths))


def propose(tokens: list[int], widths: tuple[int, ...], **sizes: int) -> TokenTree:
    return NgramDrafter(**sizes).propose([request(tokens, widths)])[0]


def within(tokens: list[int], **limits: int) -> TokenTree:
    asked = DraftRequest(request_id=0, tokens=tokens, sampler=SAMPLER, spec=TreeLimits(**limits))
    return NgramDrafter().propose([asked])[0]


def paths(tree: TokenTree) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for node in range(1, len(tree.tokens)):
        found.append([*found[tree.parents[node]], tree.tokens[node]])
    return found


def test_the_longest_match_wins_over_a_later_one() -> None:
    text = [1, 2, 3, 50, 51, 9, 2, 3, 60, 61, 8, 1, 2, 3]
    assert list(propose(text, (1, 1)).tokens) == [3, 50, 51]
    assert list(propose(text, (1, 1), max_n=2).tokens) == [3, 60, 61]


def test_of_equal_matches_the_latest_wins() -> None:
    assert list(propose([1, 2, 50, 1, 2, 60, 1, 2], (1,)).tokens) == [2, 60]


def test_several_matches_make_a_tree_within_the_widths() -> None:
    text = [1, 2, 50, 51, 1, 2, 50, 52, 1, 2, 60, 61, 1, 2, 70, 71, 1, 2]
    assert paths(propose(text, (2, 1)))[1:] == [[70], [70, 71], [60], [60, 61]]
    assert paths(propose(text, (3, 2)))[1:] == [[70], [70, 71], [60], [60, 61], [50], [50, 52], [50, 51]]
    assert propose(text, (1, 1)).is_chain()


def test_a_match_near_the_end_goes_on_in_its_own_copy() -> None:
    assert list(propose([9, 1, 2, 1, 2, 1, 2], (1,) * 5).tokens) == [2, 1, 2, 1, 2, 1]


def test_nothing_is_proposed_without_a_match_or_for_padding() -> None:
    assert propose([1, 2, 3, 4], (2, 2)).num_drafted == 0
    assert propose([5], (2, 2)).num_drafted == 0
    assert propose([1, 2, 100, 1, 2], (1, 1)).num_drafted == 0
    assert propose([1, 9, 1], (1,), min_n=2).num_drafted == 0
    assert propose([1, 9, 1], (1,)).num_drafted == 1


def test_a_match_of_one_token_is_trusted_for_fewer_levels() -> None:
    text = [7, 1, *range(10, 30), 8, 1]
    assert propose(text, (1,) * 8).num_drafted == 4
    text[-2] = 7
    assert propose(text, (1,) * 8).num_drafted == 8


def test_children_are_chosen_and_not_drawn() -> None:
    assert not propose([1, 2, 50, 1, 2, 60, 1, 2], (2,)).draws


def test_within_limits_several_matches_are_siblings_with_grades_of_their_own() -> None:
    text = [1, 2, 50, 51, 1, 2, 60, 61, 3, 2, 70, 71, 1, 2]
    tree = within(text, depth=3, branch=3, budget=20)
    assert paths(tree)[1:] == [[60], [60, 61], [60, 61, 3], [50], [50, 51], [50, 51, 1], [70], [70, 71], [70, 71, 1]]
    assert tree.grades == [0] + [4] * 6 + [1] * 3  # two rivals of two tokens, one among three of one token
    assert paths(within(text, depth=3, branch=2, budget=20))[1:] == paths(tree)[1:7]
    assert paths(within(text, depth=3, branch=3, budget=5))[1:] == paths(tree)[1:6]


def test_grades_tell_how_far_matches_agree() -> None:
    assert within([1, 2, 3, 4, 9, 1, 2, 3], depth=1).grades == [0, 1 + 3 * 2 + 1]
    assert within([1, 5, 1, 5, 1, 6, 2, 1], depth=1, branch=1).grades == [0, 1]
    assert within([1, 5, 4, 1, 5, 2, 1], depth=1).grades == [0, 1 + 2]
    assert within([1, 5, 4, 1, 6, 2, 1], depth=1).grades == [0, 1, 1]


def test_within_limits_weak_matches_and_siblings_stay_short() -> None:
    text = [7, 1, *range(10, 30), 8, 1]
    assert within(text, depth=16).num_drafted == 4
    text = [7, 1, *range(10, 30), 7, 1, *range(30, 50), 7, 1]
    assert within(text, depth=16).num_drafted == 16 + 4


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6), st.integers(1, 3), st.integers(1, 12))
def test_trees_stay_within_the_limits(text: list[int], depth: int, branch: int, budget: int) -> None:
    tree = within(text, depth=depth, branch=branch, budget=budget)
    assert is_well_formed(tree, root=text[-1], vocab_limit=100)
    assert tree.num_drafted <= budget and max(tree.depths()) <= depth
    assert all(list(tree.parents).count(node) <= branch for node in range(len(tree.tokens)))
    assert all(0 < grade <= 12 for grade in tree.grades[1:])
    assert (tree.num_drafted == 0) == (text[-1] not in text[:-1])


def test_the_index_follows_each_text_and_forgets_released_ones() -> None:
    drafter = NgramDrafter()
    first, second = [1, 2, 3, 1, 2], [1, 2, 4, 1, 2]
    trees = drafter.propose([request(first, (1,), 0), request(second, (1,), 1)])
    assert [list(tree.tokens) for tree in trees] == [[2, 3], [2, 4]]
    grown = [*first, 3, 1, 5, 5, 3, 1]
    assert list(drafter.propose([request(grown, (1,))])[0].tokens) == [1, 5]
    assert list(drafter.propose([request(grown, (1,))])[0].tokens) == list(NgramDrafter().propose([request(grown, (1,))])[0].tokens)
    drafter.release(0)
    drafter.release(77)
    assert list(drafter.propose([request(second, (1,))])[0].tokens) == [2, 4]


@pytest.mark.parametrize("widths", [(1,) * 6, (2, 2, 1)])
def test_a_repeating_text_is_accepted_and_stays_the_same(widths: tuple[int, ...]) -> None:
    target = ToyModel(seed=3, memory=1, vocab_size=12)
    sampler = RequestSampler(SamplingParams(), seed=0, vocab_limit=12)
    decoding = Decoding(request_id=0, text=[1, 2], sampler=sampler)
    speculate(target, NgramDrafter(), [decoding], widths, steps=20)
    assert decoding.text == plain(target, sampler, [1, 2], len(decoding.text))
    assert max(decoding.accepted) == len(widths) and min(decoding.accepted) == 0


@pytest.mark.parametrize("spec", [TreeSpec(widths=(1,) * 8), TreeSpec(widths=(2, 2, 1)), TreeLimits(depth=16, branch=4, budget=32)])
@pytest.mark.parametrize("period", [1, 97, 9000])
def test_a_step_costs_the_same_at_any_length(spec: Tree, period: int) -> None:
    calls = {}
    for length in (2000, 8000):
        drafter, text = NgramDrafter(), [place % period for place in range(length)]
        for grown in (text, [*text, length % period]):
            profiler = cProfile.Profile()
            profiler.enable()
            drafter.propose([DraftRequest(request_id=0, tokens=grown, sampler=SAMPLER, spec=spec)])
            profiler.disable()
        calls[length] = sum(entry.callcount for entry in profiler.getstats())
    assert calls[8000] < calls[2000] + 50 < 1500
