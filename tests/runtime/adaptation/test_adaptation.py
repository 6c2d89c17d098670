"""Adaptive trees through the engine: the text is plain's, and the trees follow what is worth its time."""

import numpy as np
import pytest

from engine_reference import plain, run_checked
from flexspec.acceptance import AcceptanceTable
from flexspec.config import SamplingParams
from flexspec.runtime.adaptation.adaptation import Adaptation, record
from flexspec.runtime.adaptation.growth import path_chances
from flexspec.runtime.adaptation.step_costs import StepCosts
from flexspec.runtime.adaptation.switch import DrafterSwitch
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import Origin, TokenTree
from flexspec.tree_shape import TreeLimits
from toy_drafter import FixedDrafter, ToyDrafter
from toy_model import ToyModel

LIMITS = TreeLimits(depth=6, branch=2, budget=12)
REQUESTS = [DraftRequest(request_id=0, tokens=range(5000), sampler=RequestSampler(SamplingParams(), seed=0, vocab_limit=24), spec=LIMITS)]
"""One that has been decoding for long."""


def toy(**changes):
    return ToyModel(**{"vocab_size": 24, "seed": 3, "memory": 2, "max_pass_tokens": 64} | changes)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(("max_batch", "pass_tokens"), [(1, 64), (4, 64), (4, 9)])
def test_whatever_the_trees_the_text_is_plains(temperature, max_batch, pass_tokens, monkeypatch):  # case 34
    monkeypatch.setattr(Adaptation, "tokens_per_s", property(lambda self: 0.0))  # toys are too quick for drafts to pay
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=5)
    prompts = [[1], [2, 3, 4], [5] * 20, [6, 7]]
    sizes = set()
    engine = Engine(
        toy(),
        drafters=[ToyDrafter(toy(noise=0.4)), NgramDrafter()],
        tree=LIMITS,
        max_len=128,
        max_batch=max_batch,
        pass_tokens=pass_tokens,
        observer=lambda step: sizes.add((step.tree.num_drafted, len(step.path))),
    )
    requests = {engine.add(prompt, params): prompt for prompt in prompts}
    assert list(run_checked(engine, requests).values()) == [plain(toy(), prompt, params) for prompt in prompts]
    assert max(size for size, _ in sizes) <= LIMITS.budget
    assert any(length > 1 for _, length in sizes), "something was accepted"


def adaptation(*names, seconds=None):
    drafters = [FixedDrafter(None) for _ in names]
    for drafter, name in zip(drafters, names, strict=True):
        drafter.name = name
    return Adaptation(drafters, costs=StepCosts(seconds or {1: 6e-3, 8: 7e-3, 16: 8e-3, 32: 14e-3}), acceptance=AcceptanceTable())


def chain(length, name="a", grade=0):
    origins = [[], *([Origin(name, 0, grade)] for _ in range(length))]
    return TokenTree(tokens=list(range(length + 1)), parents=list(range(-1, length)), origins=origins)


def first_nodes(tree, size):
    kept = slice(size + 1)
    return TokenTree(tokens=tree.tokens[kept], parents=tree.parents[kept], origins=tree.origins[kept])


def choose(adapted, tree, ahead):
    """What is verified of a chain; if `ahead`, so much of it as was settled before it was known."""
    if ahead and adapted.can_fix_sizes and (size := adapted.sizes([tree.num_drafted], budget=63, other_tokens=1, context=64.0)[0]):
        chosen = first_nodes(tree, size)
        adapted.verified([tree], [chosen], depths=[16], other_tokens=1)
        return chosen
    return adapted.select([tree], depths=[16], room=32, budget=63, other_tokens=1, context=64.0)[0]


def simulate(adapted, tree, steps, accepted, *, ahead=False):
    """Propose `tree` again and again; `accepted(step)` of its chain would be accepted. Sizes verified."""
    sizes = []
    for step in range(steps):
        adapted.begin_step()
        adapted.asks("a", REQUESTS)
        adapted.drafted("a", REQUESTS, 2e-5, 8, is_steady=True)
        chosen = choose(adapted, tree, ahead)
        reached = min(accepted(step), chosen.num_drafted)
        emitted = [*range(1, reached + 1), 99 if accepted(step) == reached else reached + 1]
        adapted.observe(tree, chosen, emitted)
        seconds = adapted.costs.seconds(1 + chosen.num_drafted)
        adapted.end_step(pass_tokens=1 + chosen.num_drafted, emitted=len(emitted), forward_s=seconds, step_s=seconds + 2e-5)
        sizes.append(chosen.num_drafted)
    return sizes


@pytest.mark.parametrize("ahead", [False, True])
def test_good_drafts_are_verified_to_their_end_and_useless_ones_not_at_all(ahead):
    assert simulate(adaptation("a"), chain(8), 100, lambda step: 8, ahead=ahead)[-20:] == [8] * 20
    assert simulate(adaptation("a"), chain(8), 100, lambda step: 0, ahead=ahead)[-20:] == [0] * 20


@pytest.mark.parametrize("ahead", [False, True])
def test_no_drafts_is_not_for_ever(ahead):
    adapted = adaptation("a")
    assert simulate(adapted, chain(8), 300, lambda step: 0, ahead=ahead)[-1] == 0
    assert simulate(adapted, chain(8), 300, lambda step: 8, ahead=ahead)[-1] == 8


@pytest.mark.parametrize("ahead", [False, True])
def test_the_size_follows_how_far_drafts_are_right(ahead):
    sizes = simulate(adaptation("a"), chain(12), 300, lambda step: 3, ahead=ahead)
    assert sizes[-50:] == [3] * 50


def test_what_was_settled_before_is_charged_for_and_expected_much_like_what_was_chosen():
    told = []
    for ahead in (False, True):
        adapted = adaptation("a", seconds={1: 6e-3, 16: 6.1e-3})
        simulate(adapted, chain(8), 60, lambda step: 8, ahead=ahead)
        switch, calibration = adapted.switches["a"], adapted._calibration
        told.append([switch.is_on(), calibration.factor, adapted._gains["a"], adapted._node_cost, adapted.tokens_per_s])
    assert told[0] == pytest.approx(told[1], rel=0.01)


def test_the_dearer_a_node_the_fewer():
    rng = np.random.default_rng(1)
    right = [int(rng.geometric(0.35)) - 1 for _ in range(600)]
    cheap = simulate(adaptation("a", seconds={1: 6e-3, 16: 6.1e-3}), chain(12), 600, right.__getitem__)[-100:]
    dear = simulate(adaptation("a", seconds={1: 6e-3, 16: 60e-3}), chain(12), 600, right.__getitem__)[-100:]
    assert np.mean(cheap) > np.mean(dear) + 2


def test_grades_decide_between_proposals():
    adapted = adaptation("a")
    sure, vague = chain(8, grade=1), chain(8, grade=2)
    for _ in range(40):
        simulate(adapted, sure, 1, lambda step: 8)
        simulate(adapted, vague, 1, lambda step: 0)
    assert simulate(adapted, sure, 1, lambda step: 8) == [8]
    assert simulate(adapted, vague, 1, lambda step: 0) == [0]


def rows(table, drafter):
    """Of single grades."""
    return [row for row in table.of(drafter).rows() if row[0][0] >= 0]


def test_a_record_counts_every_node_whose_parent_was_emitted():
    tree = TokenTree(
        tokens=[0, 1, 2, 3, 4, 5],
        parents=[-1, 0, 0, 1, 1, 2],
        origins=[
            [],
            [Origin("a", 0, 3)],
            [Origin("a", 1, 4), Origin("b", 0, 0)],
            [Origin("a", 0, 3)],
            [Origin("b", 0, 0)],
            [Origin("a", 0, 9)],
        ],
    )
    table = AcceptanceTable()
    record(table, tree, [1, 4, 7])
    assert rows(table, "a") == [((3, 0, 1), 1, 1), ((3, 0, 2), 1, 0), ((4, 1, 1), 1, 0)]
    assert rows(table, "b") == [((0, 0, 1), 1, 0), ((0, 0, 2), 1, 1)]
    before = rows(table, "a")
    record(table, tree, [9])
    assert [tried for _, tried, _ in rows(table, "a")] != [tried for _, tried, _ in before]
    record(table, TokenTree.root(3), [9])


def test_a_slow_drafter_without_use_is_turned_off_and_no_longer_asked():
    class Slow(ToyDrafter):
        def propose(self, requests):
            for _ in range(40):
                self.model.logits_of(requests[0].tokens)
            return super().propose(requests)

    drafter = Slow(toy(seed=77))
    engine = Engine(toy(), drafters=[drafter], tree=LIMITS, max_len=512)
    params = SamplingParams(max_tokens=200)
    assert engine.generate([[1]], params)[0].token_ids == plain(toy(), [1], params)
    assert 0 < len(drafter.requests) < 100


def agreeing(step_s, drafters):
    """Adaptation after steps in which all of `drafters` propose one chain, which is right; `drafters` gives their seconds."""
    adapted = adaptation(*drafters)
    tree = TokenTree(tokens=[0, 1, 2], parents=[-1, 0, 1], origins=[[], *([Origin(name, 0, 0) for name in drafters] for _ in range(2))])
    for _ in range(60):
        adapted.begin_step()
        for name, seconds in drafters.items():
            if adapted.asks(name, REQUESTS):
                adapted.drafted(name, REQUESTS, seconds, 2, is_steady=True)
        (chosen,) = adapted.select([tree], depths=[16], room=32, budget=63, other_tokens=1, context=64.0)
        adapted.observe(tree, chosen, [1, 2, 3])
        adapted.end_step(pass_tokens=1 + chosen.num_drafted, emitted=1 + chosen.num_drafted, forward_s=step_s, step_s=step_s)
    return adapted


def test_of_drafters_that_agree_the_cheapest_stays():
    adapted = agreeing(6e-3, {"dear": 2e-3, "cheap": 1e-3})
    assert adapted.switches["cheap"].is_on() and not adapted.switches["dear"].is_on()
    adapted = agreeing(6e-3, {"a": 1e-3, "b": 1e-3})
    assert sum(switch.is_on() for switch in adapted.switches.values()) == 1


def test_a_drafter_is_judged_only_for_steps_in_which_it_was_asked():
    adapted = adaptation("a")
    tree = chain(4)
    adapted.begin_step()
    adapted.asks("a", REQUESTS)
    adapted.drafted("a", REQUESTS, 1.0, 4, is_steady=True)
    adapted.select([tree], depths=[16], room=32, budget=63, other_tokens=1, context=64.0)
    adapted.end_step(pass_tokens=5, emitted=1, forward_s=6e-3, step_s=1.0)
    for _ in range(20):  # steps in which nobody wanted drafts
        adapted.begin_step()
        adapted.end_step(pass_tokens=1, emitted=1, forward_s=6e-3, step_s=6e-3)
    assert adapted.switches["a"].is_on()


def test_steps_that_only_read_prompts_judge_nobody(monkeypatch):
    judged = []
    monkeypatch.setattr(DrafterSwitch, "judge", lambda *arguments: judged.append(arguments))
    drafter = ToyDrafter(toy())
    engine = Engine(toy(), drafters=[drafter], tree=LIMITS, max_len=128, pass_tokens=9)
    for _ in range(2):
        engine.generate([[3] * 60], SamplingParams(max_tokens=12))
    assert len(judged) == len(drafter.requests) > 0


def test_cheap_drafters_are_asked_first_and_promise_what_their_trees_let_expect():
    adapted = adaptation("a", "b", "c")
    for name, seconds in {"a": 3e-3, "b": 1e-3, "c": 1e-3}.items():
        adapted.drafted(name, REQUESTS, seconds, 1, is_steady=True)
    assert adapted.by_cost(["a", "b", "c"]) == ["b", "c", "a"]
    tree = chain(3)
    chances = path_chances(tree, adapted.acceptance, 2)
    assert chances[1] > chances[2] > 0
    assert adapted.promised([tree, TokenTree.root(7)], [2, 2]) == pytest.approx((chances[1] + chances[2]) / 2)


def test_prompts_in_a_pass_say_nothing_about_its_cost_and_stop_no_judgement():
    adapted = adaptation("a")
    costs, rate = adapted.costs.table(), adapted.tokens_per_s
    for _ in range(20):
        adapted.begin_step()
        if adapted.asks("a", REQUESTS):
            adapted.drafted("a", REQUESTS, 1.0, 4, is_steady=True)
        adapted.end_step(pass_tokens=16, emitted=1, forward_s=3.0, step_s=4.0, has_prompts=True)
    assert (adapted.costs.table(), adapted.tokens_per_s) == (costs, rate)
    assert not adapted.switches["a"].is_on()
