"""Trees grown by a device, here by the kernels' references, against those that the host grows level by level."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine_reference import plain as plain_text
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.walk import WalkVerifier
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from oracles.decode import Decoding, advance, plain, speculate
from toy_model import ToyModel
from toy_states import StatefulToy, ToyHead, head_drafter

on_device = pytest.importorskip("toy_device", reason="no Triton here").on_device

VOCAB = 16  # all of it is among a node's candidates, so that the host's are as exact as the device's
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.9)
CHAIN, TREE = TreeSpec(widths=(1, 1, 1, 1)), TreeSpec(widths=(2, 2, 1))


class Counted:
    """Notes for how many requests trees were grown."""

    def __init__(self, grower: Any) -> None:
        self._grower = grower
        self.requests: list[int] = []

    def grow(self, kv: Any, plan: Any, *rest: Any) -> Any:
        self.requests.append(len(plan.lengths))
        return self._grower.grow(kv, plan, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grower, name)


class Halving:
    """First children hold with one half, others hardly."""

    def chance(self, grade: int, rank: int, depth: int) -> float:
        return 0.1 if rank else 0.5


def toy(**changes: Any) -> ToyModel:
    return ToyModel(**{"vocab_size": VOCAB, "seed": 4} | changes)


def device(model: Any) -> Any:
    model = on_device(model)
    model.level_grower = Counted(model.level_grower)
    return model


def drafter(model: Any, **options: Any) -> SsmDrafter:
    return SsmDrafter("toy", model, **({"max_requests": 4, "block_size": 400, "alpha": 0.5} | options))


def ragged(params: SamplingParams) -> list[Decoding]:
    rng = np.random.default_rng(1)
    samplers = [RequestSampler(params, seed=2**64 - 1 - i, vocab_limit=VOCAB, completion=i) for i in range(3)]
    return [
        Decoding(request_id=i, text=rng.integers(0, VOCAB, length).tolist(), sampler=sampler)
        for i, (length, sampler) in enumerate(zip((1, 7, 90), samplers, strict=True))
    ]


def request(tokens: Sequence[int], spec: Tree, *, request_id: int = 0, params: SamplingParams = GREEDY, **options: Any) -> DraftRequest:
    sampler = RequestSampler(params, seed=9, vocab_limit=VOCAB, rules=options.pop("rules", ()))
    return DraftRequest(request_id=request_id, tokens=tokens, sampler=sampler, spec=spec, **options)


@pytest.mark.parametrize("spec", [CHAIN, TREE], ids=str)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0)], ids=["greedy", "coupled"])
def test_the_model_as_its_own_draft_accepts_everything_whatever_came_between(spec: TreeSpec, params: SamplingParams) -> None:  # case 33
    target, model = toy(), device(toy())
    own, batch, rng = drafter(model, alpha=1.0), ragged(params), np.random.default_rng(0)
    starts = [len(one.text) for one in batch]
    for _ in range(8):
        speculate(target, own, batch, spec.widths, steps=1)
        assert [one.accepted[-1] for one in batch] == [spec.depth] * 3
        for one in batch:
            future, right = plain(target, one.sampler, one.text, len(one.text) + 4)[len(one.text) :], int(rng.integers(0, 4))
            if rng.random() < 0.5:  # a lookup draft
                tokens = [one.text[-1], *future[:right], (future[right] + 1) % VOCAB]
                advance(target, WalkVerifier("coupled"), one, TokenTree(tokens=tokens, parents=range(-1, len(tokens) - 1)))
            if rng.random() < 0.2:  # a preemption
                own.release(one.request_id)
    assert model.level_grower.requests == [3] * 8
    for one, start in zip(batch, starts, strict=True):
        assert one.text == plain(target, one.sampler, one.text[:start], len(one.text))


def steps(target: ToyModel, own: SsmDrafter, host: SsmDrafter, batch: Sequence[Decoding], spec: Tree, count: int) -> Iterator[Any]:
    """Trees of the device and of the host, as the text goes on with the former."""
    for _ in range(count):
        asked = [DraftRequest(request_id=one.request_id, tokens=one.text, sampler=one.sampler, spec=spec) for one in batch]
        trees = own.propose(asked)
        yield from zip(trees, host.propose(asked), strict=True)
        for one, tree in zip(batch, trees, strict=True):
            advance(target, WalkVerifier("coupled"), one, tree)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("widths", [(3, 2, 1), (1,) * 5, (4,)], ids=str)
def test_trees_are_those_of_the_host(widths: tuple[int, ...], params: SamplingParams) -> None:
    model, batch = device(toy(noise=0.4)), ragged(params)
    own, host = drafter(model, block_size=200), drafter(toy(noise=0.4), block_size=200)
    for tree, other in steps(toy(), own, host, batch, TreeSpec(widths=widths), 8):
        assert (tree.tokens, tree.parents) == (other.tokens, other.parents)
        if params.greedy:  # the host adds up fewer shares: those within reach
            assert all(grade <= upper for grade, upper in zip(tree.grades, other.grades, strict=True))
        else:
            assert tree.grades == other.grades
    assert model.level_grower.requests == [3] * 8
    assert 0 < sum(sum(one.accepted) for one in batch) < 8 * 3 * len(widths)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    found = [(tree.tokens[0],)]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], token))
    return set(found)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
def test_adaptive_trees_are_nearly_those_of_the_host(params: SamplingParams) -> None:
    model, batch = device(toy(noise=0.4)), ragged(params)
    starts = [len(one.text) for one in batch]
    own, host = drafter(model, block_size=200), drafter(toy(noise=0.4), block_size=200)
    trees = list(steps(toy(), own, host, batch, TreeLimits(depth=5, branch=3, budget=14), 8))
    shared = [len(paths(tree) & paths(other)) / max(len(tree.tokens), len(other.tokens)) for tree, other in trees]
    assert sum(shared) / len(shared) > 0.9, "beams go by the model's shares, and not by the chances that follow from those"
    assert max(tree.num_drafted for tree, _ in trees) == 14 and len({tuple(tree.parents) for tree, _ in trees}) > 3
    for one, start in zip(batch, starts, strict=True):
        assert one.text == plain(toy(), one.sampler, one.text[:start], len(one.text))


def test_an_adaptive_tree_of_the_model_itself_is_accepted_to_the_full_depth() -> None:  # case 33
    target, own, batch = toy(), drafter(device(toy()), alpha=1.0), ragged(SAMPLED)
    for tree, _ in steps(target, own, drafter(toy(), alpha=1.0), batch, TreeLimits(depth=4, branch=2, budget=20), 8):
        assert max(tree.depths()) == 4
    assert [one.accepted for one in batch] == [[4] * 8] * 3


def test_trust_in_the_noise_is_learned_as_on_the_host() -> None:
    target, model, batch, twins = toy(), device(toy(noise=0.2)), ragged(SAMPLED), ragged(SAMPLED)
    own, host = drafter(model, alpha=None, block_size=600), drafter(toy(noise=0.2), alpha=None, block_size=600)
    for _ in range(4):
        speculate(target, own, batch, (2, 1, 1), steps=5)
        speculate(target, host, twins, (2, 1, 1), steps=5)
        assert own._learned_alpha._hits == pytest.approx(host._learned_alpha._hits)
    assert own.alpha > 0.5


class Ban:
    def extend(self, tokens: Sequence[int]) -> None: ...

    def apply(self, logits: Any, path: Sequence[int]) -> None:
        logits[::2] = -np.inf


def test_what_the_device_can_not_do_the_host_does_next_to_it() -> None:
    asked = [
        request([1, 2, 3], TREE, request_id=0, params=SAMPLED),
        request([4, 5], TREE, request_id=1, params=SAMPLED, children=Children.DRAWN),
        request([6], TREE, request_id=2, rules=[Ban()]),
        request([7] * 9, TREE, request_id=3),
        request([8], TREE, request_id=4, params=SAMPLED, children=Children.CHOSEN),
        request([9], TreeSpec(widths=(9, 1)), request_id=5),
        request([10], TREE, request_id=6, children=Children.DISTINCT),
        replace(request([11], TREE, request_id=7), sampler=RequestSampler(GREEDY, seed=1, vocab_limit=VOCAB - 2)),
    ]
    for passes in ({}, {"max_pass_tokens": 5}):
        model = device(toy(noise=0.1, **passes))
        trees = drafter(model, max_requests=8).propose(asked)
        wanted = drafter(toy(noise=0.1), max_requests=8).propose(asked)
        assert [(tree.tokens, tree.parents) for tree in trees] == [(tree.tokens, tree.parents) for tree in wanted]
        assert model.level_grower.requests == [3], "the first, the fourth, and the seventh: greedy, so that nothing is drawn"
        assert all(tree.num_drafted for tree in trees) and trees[1].draws


def test_more_requests_than_fit_a_pass() -> None:
    asked = [request([1 + i, 2], TreeSpec(widths=(2, 1, 1)), request_id=i, params=SAMPLED) for i in range(5)]
    model = device(toy(max_pass_tokens=5))
    own, host = drafter(model, max_requests=5), drafter(toy(), max_requests=5)
    assert own.propose(asked) == host.propose(asked)
    assert model.level_grower.requests == [5] and model.num_passes == 2 + 3 * 2, "two of them at a time"


def test_at_the_end_of_its_slots_the_draft_shortens() -> None:  # case 12
    own = drafter(device(toy()), block_size=20)
    assert [max(own.propose([request([1] * n, TREE)])[0].depths()) for n in range(12, 23)] == [3, 3, 3, 2, 2, 2, 2, 1, 1, 0, 0]
    for length in range(14, 23):
        tree = drafter(device(toy()), block_size=20).propose([request([1] * length, TreeLimits(depth=6, branch=2, budget=12))])[0]
        assert max(tree.depths()) == min(6, max(21 - length, 0))


@pytest.mark.parametrize(("length", "depth"), [(60, 4), (62, 3), (64, 1), (65, 0)])
def test_it_stays_within_its_positions(length: int, depth: int) -> None:  # case 11
    own = drafter(device(toy(max_positions=64)))
    assert max(own.propose([request([1] * length, CHAIN)])[0].depths()) == depth


def test_logits_that_are_no_numbers() -> None:  # case 30
    class Broken(ToyModel):
        def logits_of(self, path: Sequence[int]) -> Any:
            return super().logits_of(path) * np.float32("nan" if len(path) > 3 else 1)

    own = drafter(device(Broken(vocab_size=VOCAB, seed=4)))
    with pytest.warns(RuntimeWarning, match="'toy' drafts nothing where its logits are not finite"):
        assert max(own.propose([request([1, 2, 3], TREE)])[0].depths()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert max(own.propose([request([1, 2, 3], TREE)])[0].depths()) == 1


def test_levels_that_are_not_worth_a_pass_are_not_drafted() -> None:
    model = device(toy())
    own, depths = drafter(model), []
    for _ in range(4):
        before = model.num_passes
        tree = own.propose([request([1, 2], TreeLimits(depth=8, branch=1, budget=8), chances=Halving(), worth=0.3)])[0]
        depths.append((max(tree.depths()), model.num_passes - before))
    assert depths[0] == (1, 1) and depths[-1] == (2, 2), "a level is worth the chance of the node that gets children"
    trees = own.propose(
        [request([1, 2], TreeLimits(depth=8, branch=1, budget=8), request_id=i, chances=Halving(), worth=0.3) for i in range(3)]
    )
    assert all(max(tree.depths()) > 2 for tree in trees), "three requests pay for more levels than one"


@pytest.mark.parametrize(("noise", "temperature"), [(0.0, 0.0), (0.0, 1.0), (0.3, 1.0)])
def test_a_head_reads_its_own_states_on_the_device(noise: float, temperature: float) -> None:
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=2)
    prompts = [[3], list(range(14)), [5, 6, 7] * 12]
    wanted = [plain_text(StatefulToy(vocab_size=VOCAB, seed=3), one, params) for one in prompts]
    for drafters, spec in (([], CHAIN), ([NgramDrafter()], TREE)):
        model = device(ToyHead(vocab_size=VOCAB, seed=3, noise=noise))
        own = head_drafter(model, alpha=1.0)
        engine = Engine(StatefulToy(vocab_size=VOCAB, seed=3), drafters=[*drafters, own], tree=spec, max_len=100, max_batch=3)
        outputs = engine.generate(prompts, params)
        assert [output.token_ids for output in outputs] == wanted
        full = 1 + -(-29 // (spec.depth + 1))
        assert all((output.stats.steps == full) == (not noise) for output in outputs)
        assert len(model.level_grower.requests) >= full - 1
