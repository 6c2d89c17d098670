import cProfile
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_reference import plain as plain_engine
from engine_reference import run_checked
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.suffix import SuffixDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import is_well_formed
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from oracles.decode import Decoding, plain, speculate
from toy_model import ToyModel

SAMPLER = RequestSampler(SamplingParams(), seed=0, vocab_limit=100)

texts = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=60))
limits = st.builds(TreeLimits, depth=st.integers(1, 6), branch=st.integers(1, 3), budget=st.integers(1, 12))
widths = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(lambda each: TreeSpec(widths=tuple(each)))


def request(tokens: list[int], spec: Tree | tuple[int, ...], request_id: int = 0, prompt_length: int = 0) -> DraftRequest:
    if isinstance(spec, tuple):
        spec = TreeSpec(widths=spec)
    return DraftRequest(request_id=request_id, tokens=tokens, sampler=SAMPLER, spec=spec, prompt_length=prompt_length)


def propose(tokens: list[int], spec: Tree | tuple[int, ...]) -> TokenTree:
    return SuffixDrafter().propose([request(tokens, spec)])[0]


def drafted(drafter: SuffixDrafter, *args: object) -> list[int]:
    return list(drafter.propose([request(*args)])[0].tokens[1:])  # type: ignore[arg-type]


def paths(tree: TokenTree) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for node in range(1, len(tree.tokens)):
        found.append([*found[tree.parents[node]], tree.tokens[node]])
    return found[1:]


def toy() -> ToyModel:
    return ToyModel(vocab_size=12, seed=3, memory=1)


def test_the_longest_match_wins_over_a_commoner_one() -> None:
    text = [1, 2, 3, 50, 51, 9, 2, 3, 60, 61, 8, 2, 3, 60, 61, 7, 1, 2, 3]
    assert list(propose(text, (1, 1)).tokens) == [3, 50, 51]
    assert list(propose([*text[:-3], 6, 2, 3], (1, 1)).tokens) == [3, 60, 61]


def test_the_commonest_successor_comes_first_and_of_equals_the_latest() -> None:
    assert paths(propose([1, 50, 1, 60, 1, 50, 1, 70, 1], (4,))) == [[50], [70], [60]]
    assert paths(propose([1, 50, 1, 60, 1], (2,))) == [[60], [50]]


def test_shorter_suffixes_add_siblings() -> None:
    text = [2, 3, 70, 2, 3, 70, 1, 2, 3, 50, 4, 3, 80, 1, 2, 3]
    assert paths(propose(text, (1,))) == [[50]]
    assert paths(propose(text, (4,))) == [[50], [70], [80]]


def test_widths_are_filled_level_by_level() -> None:
    text = [1, 2, 50, 51, 1, 2, 50, 52, 1, 2, 60, 61, 1, 2]
    assert paths(propose(text, (2, 1))) == [[50], [60], [50, 52], [60, 61]]
    assert paths(propose(text, (1, 2, 1))) == [[50], [50, 52], [50, 51], [50, 52, 1], [50, 51, 1]]


def test_loops_unroll() -> None:
    assert list(propose([9, 1, 2, 1, 2], (1,) * 6).tokens) == [2, 1, 2, 1, 2, 1, 2]
    assert list(propose([7] * 4, TreeLimits(depth=16, branch=1)).tokens) == [7] * 17


def test_nothing_is_proposed_without_a_match_or_for_padding() -> None:
    for spec in ((2, 2), TreeLimits()):
        assert propose([1, 2, 3, 4], spec).num_drafted == 0
        assert propose([5], spec).num_drafted == 0
        assert propose([1, 2, 100, 1, 2], spec).num_drafted == 0
        assert paths(propose([1, 100, 1, 100, 1, 6, 1], spec))[:1] == [[6]]
        assert paths(propose([3, 60, 1, 3, 100, 1, 3], spec))[:1] == [[60]]


def test_grades_tell_the_length_of_the_match_and_how_sure_the_successor_is() -> None:
    once, always, split = [1, 2, 3, 4, 1, 2], [5, 1, 4, 6, 1, 4, 7, 1], [1, 5, 1, 6, 1]
    assert list(propose(once, (1, 1)).grades) == [0, 1 + 3 * 1 + 1, 1 + 3 * 2 + 1]
    assert list(propose(always, (1,)).grades) == [0, 1 + 2]
    assert list(propose(split, (2,)).grades) == [0, 1, 1]
    assert list(propose([*range(40), *range(20)], (1,)).grades) == [0, 1 + 3 * 6 + 1]


@given(texts, limits | widths)
def test_trees_stay_within_what_was_asked_for_and_in_the_text(text: list[int], spec: Tree) -> None:
    tree = propose(text, spec)
    assert is_well_formed(tree, root=text[-1], vocab_limit=100)
    assert tree.num_drafted <= spec.num_nodes and max(tree.depths()) <= spec.depth
    assert all(0 < grade < 24 for grade in tree.grades[1:])
    children = [
        [tree.tokens[node] for node in range(len(tree.tokens)) if tree.parents[node] == parent] for parent in range(len(tree.tokens))
    ]
    assert all(len(set(tokens)) == len(tokens) for tokens in children)
    each = [spec.branch] * spec.depth if isinstance(spec, TreeLimits) else spec.widths
    assert all(len(tokens) <= each[depth] for tokens, depth in zip(children, tree.depths(), strict=True) if depth < spec.depth)
    pairs = set(pairwise(text))
    assert all((tree.tokens[tree.parents[node]], tree.tokens[node]) in pairs for node in range(1, len(tree.tokens)))
    assert (tree.num_drafted == 0) == (text[-1] not in text[:-1])


@given(texts, limits)
def test_smaller_budgets_give_the_first_nodes_of_larger_ones(text: list[int], spec: TreeLimits) -> None:
    small = propose(text, spec)
    large = propose(text, TreeLimits(depth=spec.depth, branch=spec.branch, budget=40))
    count = len(small.tokens)
    assert (small.tokens, small.parents, small.grades) == (large.tokens[:count], large.parents[:count], large.grades[:count])


def test_a_sure_chain_grows_deep_and_a_doubtful_one_wide() -> None:
    sure = propose([*range(40), *range(20)], TreeLimits(depth=16, branch=4, budget=32))
    assert sure.is_chain() and sure.num_drafted == 16
    doubtful = propose([1, 50, 1, 60, 1, 70, 1, 80, 1], TreeLimits(depth=16, branch=3, budget=32))
    assert doubtful.parents.count(0) == 3 and paths(doubtful)[:3] == [[80], [70], [60]]


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=5)), max_size=20))
def test_requests_that_interleave_and_grow_get_what_each_would_alone(steps: list[tuple[int, list[int]]]) -> None:
    drafter, grown = SuffixDrafter(), {request_id: [request_id] for request_id in range(3)}
    for request_id, tokens in steps:
        grown[request_id] = grown[request_id] + tokens
        asked = [request(grown[each], TreeLimits(budget=6), each) for each in (request_id, (request_id + 1) % 3)]
        assert drafter.propose(asked) == [propose(list(each.tokens), TreeLimits(budget=6)) for each in asked]


@pytest.mark.parametrize("spec", [TreeSpec(widths=(2, 2, 1, 1)), TreeLimits(depth=16, branch=4, budget=32)])
@pytest.mark.parametrize("period", [1, 7, 4000])
def test_a_step_costs_the_same_at_any_length_and_in_loops(spec: Tree, period: int) -> None:
    calls = {}
    for length in (500, 4096):
        drafter, text = SuffixDrafter(history=2000), [place % period for place in range(length)]
        drafter.propose([request(text, spec)])
        text = [*text, length % period]
        profiler = cProfile.Profile()
        profiler.enable()
        drafter.propose([request(text, spec)])
        profiler.disable()
        calls[length] = sum(entry.callcount for entry in profiler.getstats())
    assert calls[4096] < calls[500] + 200 < 1500


def test_released_requests_are_forgotten() -> None:
    drafter = SuffixDrafter()
    assert drafted(drafter, [1, 2, 3, 1, 2], (1,)) == [3]
    drafter.release(0)
    drafter.release(77)
    assert drafted(drafter, [1, 2, 4, 1, 2], (1,)) == [4]
    assert drafted(drafter, [1, 2, 9, 8], (1,), 1) == []


@pytest.mark.parametrize("spec", [(1,), (2, 1), TreeLimits()])
def test_with_history_the_outputs_of_released_requests_are_drafted_from(spec: Tree | tuple[int, ...]) -> None:
    drafter = SuffixDrafter(history=1000)
    assert drafter.name == "suffix:history"
    assert drafted(drafter, [1, 2, 3, 4, 5, 6, 7], spec, 0, 3) == []
    assert drafted(drafter, [9], spec, 1, 1) == []
    drafter.release(0)
    assert drafted(drafter, [9, 4], spec, 1, 2)[:1] == [5]
    assert drafted(drafter, [9, 4, 5], spec, 1, 2)[:1] == [6]
    assert drafted(drafter, [8, 1], spec, 2, 2) == []  # a prompt is no output
    assert drafted(drafter, [8, 7], spec, 3, 2) == []  # nothing follows the end of an output
    drafter.release(1)
    assert drafted(drafter, [9, 4], spec, 4, 2)[:1] == [5]


def test_with_history_the_surer_match_comes_first_and_the_other_as_a_sibling() -> None:
    drafter = SuffixDrafter(history=1000)
    drafted(drafter, [1, 2, 3, 50, 51], (1,), 0)
    drafter.release(0)
    text = [3, 60, 61, 2, 1, 2, 3]
    assert drafted(drafter, text, (1, 1), 1) == [50, 51]
    assert paths(drafter.propose([request(text, (2, 1), 2)])[0]) == [[50], [60], [50, 51], [60, 61]]
    assert drafted(drafter, [1, 2, 3, 60, 1, 2, 3], (1,), 3) == [60]  # of equal matches the request's own


@pytest.mark.parametrize("spec", [(4,), (1, 1, 1), (1,), (2, 2, 1)])  # row 5
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_repeating_text_is_accepted_and_stays_the_same(spec: tuple[int, ...], temperature: float) -> None:
    target = toy()
    sampler = RequestSampler(SamplingParams(temperature=temperature), seed=0, vocab_limit=12)
    decoding = Decoding(request_id=0, text=[1, 2], sampler=sampler)
    speculate(target, SuffixDrafter(), [decoding], spec, steps=40)
    assert decoding.text == plain(target, sampler, [1, 2], len(decoding.text))
    assert max(decoding.accepted) == len(spec) and min(decoding.accepted) == 0
    assert spec[0] > 1 or all(tree.is_chain() for tree in decoding.trees)


def test_row_12_drafts_shorten_towards_the_end_of_the_capacity() -> None:
    records = []
    prompt = [1, 2] * 30
    engine = Engine(toy(), drafters=[SuffixDrafter()], tree=TreeSpec(widths=(1,) * 5), max_len=64, observer=records.append)
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=100))
    assert output.finish_reason == "length"
    assert output.token_ids == plain_engine(toy(), prompt, SamplingParams(max_tokens=100), max_len=64)
    assert all(max(record.tree.depths()) < 4 for record in records)


@pytest.mark.parametrize("tree", [TreeSpec(widths=(1, 1, 1)), TreeSpec(widths=(2, 1)), TreeLimits(depth=4, branch=2, budget=6)])
def test_row_22_next_to_lookup_duplicates_fold_and_the_text_stays_the_same(tree: Tree) -> None:
    text = [1, 2, 50, 1, 2, 60, 1, 2, 50, 1, 2]
    trees = [(each.name, each.propose([request(text, (2, 1))])[0]) for each in (SuffixDrafter(), NgramDrafter())]
    merged = merge_trees(2, trees)
    assert sorted(paths(merged)) == [[50], [50, 1], [60], [60, 1]]
    assert {origin.drafter for origin in merged.origins[1]} == {"suffix", "ngram"}
    prompts, params = [[3], [1, 2, 3, 4], [5, 6] * 9], SamplingParams(max_tokens=40, temperature=0.9, seed=5)
    drafters = [SuffixDrafter(history=500), SuffixDrafter(), NgramDrafter()]
    engine = Engine(toy(), drafters=drafters, tree=tree, max_batch=2, max_len=80)
    for _ in range(2):
        added = {engine.add(prompt, params): prompt for prompt in prompts}
        assert list(run_checked(engine, added).values()) == [plain_engine(toy(), prompt, params) for prompt in prompts]


def test_row_28_an_end_in_mid_block_and_no_drafts_leave_the_counts_right() -> None:
    target = ToyModel(vocab_size=12, seed=3, memory=2)
    first = plain_engine(target, [1, 2], SamplingParams(max_tokens=6))
    eos = first[-1]
    assert eos not in first[:-1]
    prompt, params = [1, 2, *first, 1, 2], SamplingParams(max_tokens=60)
    engine = Engine(target, drafters=[SuffixDrafter()], tree=TreeSpec(widths=(2, 1, 1)), max_len=200, eos_token_ids=(eos,))
    (output,) = engine.generate([prompt], params)
    assert output.token_ids == first == plain_engine(target, prompt, params, eos=(eos,)) and output.finish_reason == "stop"
    assert 0 < output.stats.accepted <= output.stats.drafted and output.stats.steps < output.stats.new_tokens == 6
    (short,) = engine.generate([[4]], SamplingParams(max_tokens=1))
    assert short.stats.drafted == short.stats.accepted == 0 and len(short.token_ids) == 1
