import pytest

from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.speculator import Speculator
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.tree_shape import TreeSpec
from oracles.decode import Decoding, plain, speculate
from oracles.proposals import to_distribution
from toy_drafter import Merged
from toy_model import ToyModel

VOCAB = 24


def ssm(name: str, **options: float) -> SsmDrafter:
    return SsmDrafter(name, ToyModel(vocab_size=VOCAB, **options), max_requests=4, block_size=200)  # type: ignore[arg-type]


def request(draws: bool = False, temperature: float = 0.0) -> DraftRequest:
    sampler = RequestSampler(SamplingParams(temperature=temperature), seed=3, vocab_limit=VOCAB)
    return DraftRequest(
        request_id=0, tokens=[1, 2, 3], sampler=sampler, spec=TreeSpec(widths=(2, 1)), children=Children.DRAWN if draws else Children.ANY
    )


def paths(tree) -> set[tuple[int, ...]]:  # type: ignore[no-untyped-def]
    found: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree.tokens)):
        found.append((*found[tree.parents[node]], tree.tokens[node]))
    assert len(set(found)) == len(found)
    return set(found)


def test_equal_proposals_fold_into_one_tree() -> None:  # case 22
    alone = ssm("a", seed=1).propose([request()])[0]
    both = Merged([ssm("a", seed=1), ssm("b", seed=1)]).propose([request()])[0]
    assert both.tokens == alone.tokens and both.parents == alone.parents


def test_disjoint_proposals_are_all_there() -> None:  # case 22
    first, second = ssm("a", seed=1), ssm("b", seed=2)
    both = Merged([ssm("a", seed=1), ssm("b", seed=2)]).propose([request()])[0]
    assert paths(both) == paths(first.propose([request()])[0]) | paths(second.propose([request()])[0])


def test_draws_of_different_drafters_are_independent_and_in_their_order() -> None:
    drawn = request(draws=True, temperature=2.0)
    merged = Merged([ssm("a", seed=1), ssm("b", seed=1)]).propose([drawn])[0]
    alone = [ssm(name, seed=1).propose([drawn])[0] for name in "ab"]
    tokens = [[tree.tokens[draw.node] for draw in tree.draws[0]] for tree in (merged, *alone)]
    assert tokens[0] == tokens[1] + tokens[2]
    assert tokens[1] != tokens[2]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_merged_drafters_change_nothing_and_accept_more(temperature: float) -> None:
    target = ToyModel(vocab_size=VOCAB, seed=1)
    accepted = []
    for make in (
        lambda: ssm("a", seed=1, noise=0.5),
        lambda: Merged([ssm("a", seed=1, noise=0.5), ssm("b", seed=1, noise=0.5, noise_seed=5)]),
    ):
        sampler = RequestSampler(SamplingParams(temperature=temperature), seed=3, vocab_limit=VOCAB)
        decoding = Decoding(request_id=0, text=[1], sampler=sampler)
        speculate(target, make(), [decoding], (1, 1, 1), steps=30)
        assert decoding.text == plain(target, sampler, [1], len(decoding.text))
        accepted.append(sum(decoding.accepted))
    assert 0 < accepted[0] < accepted[1] < 90


def test_merging_with_lookup_works_under_mss() -> None:
    target = ToyModel(vocab_size=VOCAB, seed=1, memory=1)
    drafter = Merged([ssm("a", seed=1, memory=1, noise=0.5), NgramDrafter()])
    sampler = RequestSampler(SamplingParams(temperature=0.5), seed=3, vocab_limit=VOCAB)
    decoding = Decoding(request_id=0, text=[1], sampler=sampler)
    speculate(target, drafter, [decoding], (2, 1), steps=30, verifier=MssVerifier())
    assert 0 < sum(decoding.accepted) < 60
    drafter.release(0)


def test_names_must_differ() -> None:
    with pytest.raises(AssertionError, match="share a name"):
        Speculator([NgramDrafter(), NgramDrafter()], TreeSpec(widths=(1,)), max_nodes=4)


Q = to_distribution([0.2, 0.3, 0.4, 0.05, 0.05])


def trials(tree: TokenTree, node: int) -> list[tuple[int, Distribution | None]]:
    """Tokens tried at a node and what they were drawn from."""
    return [(tree.tokens[draw.node], draw.q) for draw in tree.draws[node]]


def test_shared_paths_fold_and_the_first_drafters_trials_come_first() -> None:
    drawn = TreeBuilder(0)
    drawn.add(drawn.add(0, 1, Q), 2, Q)
    chosen = TokenTree(tokens=[0, 3, 1, 2, 4], parents=[-1, 0, 0, 2, 2], grades=[0, 5, 6, 7, 8])
    tree = merge_trees(0, [("a", drawn.build()), ("b", chosen)])
    assert (list(tree.tokens), list(tree.parents)) == ([0, 1, 2, 3, 4], [-1, 0, 1, 0, 1])
    assert trials(tree, 0) == [(1, Q), (3, None), (1, None)], "children without a record count as chosen"
    assert trials(tree, 1) == [(2, Q), (2, None), (4, None)]
    a, b = [("a", 0, 0)], [("b", 1, 6)]
    assert [list(map(tuple, origins)) for origins in tree.origins] == [[], a + b, [*a, ("b", 0, 7)], [("b", 0, 5)], [("b", 1, 8)]]


def test_a_token_drawn_twice_is_one_node_and_two_trials() -> None:
    drawn = TreeBuilder(0)
    for _ in range(2):
        drawn.add(0, 2, Q)
    tree = merge_trees(0, [("a", drawn.build()), ("b", drawn.build())])
    assert list(tree.tokens) == [0, 2] and trials(tree, 0) == [(2, Q)] * 4


def test_chosen_trees_record_no_trials() -> None:
    chosen = TokenTree(tokens=[0, 3, 1], parents=[-1, 0, 1])
    assert not merge_trees(0, [("a", chosen), ("b", chosen)]).draws
    assert merge_trees(0, []).num_drafted == 0


def test_trees_of_different_roots_do_not_merge() -> None:
    with pytest.raises(AssertionError, match="different roots"):
        merge_trees(0, [("a", TokenTree.root(1))])
