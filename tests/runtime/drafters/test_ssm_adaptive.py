"""A draft model within the limits of an adaptive tree."""

import random
from collections.abc import Sequence

import pytest

from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Chances, Children, Drafter, DraftRequest
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.walk import WalkVerifier
from flexspec.tree_shape import TreeLimits
from oracles.decode import Decoding, advance, plain
from toy_model import ToyModel

VOCAB = 24
LENGTHS = (1, 7, 90)


class Constant:
    """The same chance for every first child, and for every other one."""

    def __init__(self, first: float = 1.0, others: float = 0.0) -> None:
        self._first = first
        self._others = others

    def chance(self, grade: int, rank: int, depth: int) -> float:
        return self._others if rank else self._first


class Fickle:
    """Another chance at every call."""

    def __init__(self) -> None:
        self._random = random.Random(5)

    def chance(self, grade: int, rank: int, depth: int) -> float:
        return self._random.random()


def toy(**changes) -> ToyModel:
    return ToyModel(**{"vocab_size": VOCAB, "seed": 4} | changes)


def ssm(model: ToyModel, *, block_size: int = 400, alpha: float | None = None) -> SsmDrafter:
    return SsmDrafter("toy", model, max_requests=3, block_size=block_size, alpha=alpha)


def request(
    text: Sequence[int], limits: TreeLimits, *, request_id: int = 0, params: SamplingParams | None = None, **options
) -> DraftRequest:
    sampler = RequestSampler(params or SamplingParams(), seed=request_id, vocab_limit=VOCAB)
    return DraftRequest(request_id=request_id, tokens=text, sampler=sampler, spec=limits, **options)


def decodings(params: SamplingParams) -> list[Decoding]:
    return [
        Decoding(request_id=i, text=[(5 * j + i) % VOCAB for j in range(length)], sampler=RequestSampler(params, seed=i, vocab_limit=VOCAB))
        for i, length in enumerate(LENGTHS)
    ]


def speculate(
    target: ToyModel, drafter: Drafter, batch: Sequence[Decoding], limits: TreeLimits, *, steps: int, chances: Chances | None, worth=0.0
) -> None:
    for _ in range(steps):
        asked = [
            DraftRequest(request_id=one.request_id, tokens=one.text, sampler=one.sampler, spec=limits, chances=chances, worth=worth)
            for one in batch
        ]
        for one, tree in zip(batch, drafter.propose(asked), strict=True):
            advance(target, WalkVerifier("coupled"), one, tree)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "coupled"])
@pytest.mark.parametrize("chances", [Constant(), Constant(1.0, 0.4)], ids=["chain", "tree"])
def test_the_model_as_its_own_draft_accepts_the_full_depth(params: SamplingParams, chances: Chances) -> None:  # case 33
    limits = TreeLimits(depth=5, branch=2, budget=12)
    target, batch = toy(), decodings(params)
    speculate(target, ssm(toy(), alpha=1.0), batch, limits, steps=20, chances=chances, worth=0.5)
    for one, length in zip(batch, LENGTHS, strict=True):
        assert one.accepted == [5] * 20
        assert one.text == plain(target, one.sampler, one.text[:length], len(one.text))


def test_it_accepts_everything_also_after_other_steps() -> None:  # case 33: after a bonus token, a lookup draft, a pause
    target, own = toy(), ssm(toy())
    batch = decodings(SamplingParams())
    rng = random.Random(1)
    for _ in range(15):
        speculate(target, own, batch, TreeLimits(depth=3, branch=3, budget=9), steps=1, chances=Constant(1.0, 0.5))
        assert [one.accepted[-1] for one in batch] == [3, 3, 3]
        for one in batch:
            right = rng.randrange(4)
            future = plain(target, one.sampler, one.text, len(one.text) + 4)[len(one.text) :]
            tokens = [one.text[-1], *future[:right], (future[right] + 1) % VOCAB]
            if rng.random() < 0.7:
                advance(target, WalkVerifier("greedy"), one, TokenTree(tokens=tokens, parents=range(-1, len(tokens) - 1)))
            if rng.random() < 0.2:
                own.release(one.request_id)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.9)], ids=["greedy", "coupled"])
@pytest.mark.parametrize("chances", [None, Fickle()], ids=["own", "fickle"])
def test_no_shape_changes_the_text(params: SamplingParams, chances: Chances | None) -> None:
    limits = TreeLimits(depth=6, branch=3, budget=8)
    target, batch = toy(), decodings(params)
    speculate(target, ssm(toy(noise=0.4), block_size=90 + 7 * 30 + 8), batch, limits, steps=30, chances=chances)
    for one, length in zip(batch, LENGTHS, strict=True):
        assert 0 < sum(one.accepted) < 30 * 6
        assert max(tree.num_drafted for tree in one.trees) == 8 and len({tuple(tree.parents) for tree in one.trees}) > 3
        assert one.text == plain(target, one.sampler, one.text[:length], len(one.text))


def test_levels_that_are_not_worth_a_pass_are_not_drafted() -> None:
    limits = TreeLimits(depth=8, branch=1, budget=8)
    # A level is worth the chance of the node that gets children times the hit rate, which starts at 1.
    for worth, depth in ((0.0, 7), (0.3, 2), (0.6, 1)):
        model = toy()
        tree = ssm(model).propose([request([1, 2], limits, chances=Constant(0.5), worth=worth)])[0]
        assert max(tree.depths()) == depth, "without worth, down to a chance of 0.01"
        assert model.num_passes == depth


def test_requests_share_the_levels() -> None:
    limits = TreeLimits(depth=8, branch=1, budget=8)
    model = toy()
    alone = ssm(model).propose([request([1, 2], limits, chances=Constant(0.5), worth=0.3)])[0]
    trees = ssm(toy()).propose([request([1, 2], limits, request_id=i, chances=Constant(0.5), worth=0.3) for i in range(3)])
    assert all(max(tree.depths()) > max(alone.depths()) for tree in trees), "three requests pay for more levels than one"


@pytest.mark.parametrize(("length", "depth"), [(55, 6), (60, 5), (64, 1), (65, 0)])
def test_it_stays_within_its_positions(length: int, depth: int) -> None:  # case 11
    own = ssm(toy(max_positions=64))
    tree = own.propose([request([1] * length, TreeLimits(depth=6, branch=2, budget=12), chances=Constant(1.0, 0.3))])[0]
    assert max(tree.depths()) == depth
    assert own.stats.fallbacks == (depth == 0)


@pytest.mark.parametrize("length", range(12, 22))
def test_it_stays_within_its_slots(length: int) -> None:  # case 12
    tree = ssm(toy(), block_size=20).propose([request([1] * length, TreeLimits(depth=6, branch=2, budget=12), chances=Constant(1.0, 0.9))])
    assert max(tree[0].depths()) == min(6, max(21 - length, 0))


def test_a_smaller_vocabulary_and_logits_that_are_no_numbers() -> None:  # cases 13 and 30
    limits = TreeLimits(depth=3, branch=4, budget=12)
    own = ssm(toy(vocab_size=10))
    assert max(own.propose([request([1, 2], limits, chances=Constant(0.9, 0.5))])[0].tokens) < 10
    assert own.propose([request([1, 2, 11], limits)])[0].num_drafted == 0

    class Broken(ToyModel):
        def logits_of(self, path):  # type: ignore[no-untyped-def]
            return super().logits_of(path) * float("nan" if len(path) > 3 else 1)

    with pytest.warns(RuntimeWarning, match="not finite"):
        tree = ssm(Broken(vocab_size=VOCAB, seed=4)).propose([request([1, 2, 3], limits, chances=Constant(0.9, 0.5))])[0]
    assert max(tree.depths()) == 1


def test_sampled_children_are_refused() -> None:
    for children in (Children.DRAWN, Children.DISTINCT, Children.CHOSEN):
        with pytest.raises(AssertionError, match="adaptive"):
            ssm(toy()).propose([request([1, 2], TreeLimits(), params=SamplingParams(temperature=1.0), children=children)])
