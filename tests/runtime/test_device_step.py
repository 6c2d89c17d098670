"""Steps that the host waits for once, at the end, say what steps say whose trees the host sees first."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_reference import plain, run_checked
from flexspec.config import SamplingParams
from flexspec.runtime.device_step import DeviceStep
from flexspec.runtime.drafters.device_growth import DeviceGrowth
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from toy_model import ToyModel
from toy_states import StatefulToy, ToyHead, head_drafter

toy_device = pytest.importorskip("toy_device", reason="no Triton here")

VOCAB = 24
PROMPTS = [[3, 1, 7], [5], [2, 2, 9, 4] * 6]
GREEDY = SamplingParams(max_tokens=20)
SEEDED = SamplingParams(max_tokens=20, temperature=0.9, seed=5)
MIXED = [GREEDY, SEEDED, SamplingParams(max_tokens=13, temperature=0.8, top_p=0.9, seed=1)]
TREES = [TreeSpec(widths=(1, 1, 1)), TreeSpec(widths=(3, 2, 1)), TreeSpec(widths=(4,)), TreeLimits(depth=5, branch=3, budget=12)]


def toy(**changes: Any) -> ToyModel:
    return ToyModel(**{"vocab_size": VOCAB, "seed": 4, "sharpness": 2.5, "max_pass_tokens": 64} | changes)


def draft(*, noise: float = 0.3, alpha: float | None = 0.5, block_size: int = 300, **changes: Any) -> SsmDrafter:
    return SsmDrafter("toy", toy_device.on_device(toy(noise=noise, **changes)), max_requests=4, block_size=block_size, alpha=alpha)


def engine_of(tree: Tree, drafters: Sequence[Any] | None = None, **options: Any) -> Engine:
    model = options.pop("model", None) or toy_device.that_walks(toy())
    drafters = [draft()] if drafters is None else drafters
    return Engine(model, drafters=drafters, tree=tree, **{"max_len": 200, "max_batch": 4} | options)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many steps waited at the end, how many for their trees, and how often the host asked for what is on the device."""
    counts = {"once": 0, "twice": 0, "waits": 0}

    def counted(name: str, function: Callable[..., Any], counts_if: Callable[..., bool] = lambda *given: True) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            counts[name] += counts_if(*given)
            return function(*given, **named)

        return call

    monkeypatch.setattr(DeviceStep, "decide", counted("once", DeviceStep.decide))
    follow = DeviceGrowth.follow
    monkeypatch.setattr(DeviceGrowth, "follow", counted("twice", follow, lambda growth, packed=None: packed is None))
    monkeypatch.setattr(torch.Tensor, "cpu", counted("waits", torch.Tensor.cpu))
    return counts


def wanted(prompts: Sequence[list[int]], params: SamplingParams | Sequence[SamplingParams], **options: Any) -> list[list[int]]:
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    return [plain(toy(), prompt, own, **options) for prompt, own in zip(prompts, each, strict=True)]


@pytest.mark.usefixtures("time_is_free")
@pytest.mark.parametrize("params", [GREEDY, SEEDED, MIXED], ids=["greedy", "seeded", "mixed"])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_the_text_is_that_of_plain_decoding(tree: Tree, params: Any, steps: dict[str, int]) -> None:
    engine = engine_of(tree, pass_tokens=50)  # prompts join while others decode
    each = [params] * 3 if isinstance(params, SamplingParams) else params
    ids = [engine.add(prompt, own) for prompt, own in zip(PROMPTS, each, strict=True)]
    texts = run_checked(engine, dict(zip(ids, PROMPTS, strict=True)))
    assert [texts[request_id] for request_id in ids] == wanted(PROMPTS, params)
    assert steps["once"] > 5 and steps["twice"] <= isinstance(tree, TreeLimits)
    statistics = engine.statistics()
    assert 0 < statistics.accepted < statistics.drafted


@pytest.mark.parametrize("tree", TREES[:2], ids=str)
def test_static_trees_and_what_is_learned_are_those_of_two_waits(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[Any]] = []
    for waits in (True, False):
        if not waits:
            monkeypatch.setattr("flexspec.runtime.step_loop.can_wait", lambda requests, model: False)
        records: list[Any] = []
        own = draft(alpha=None)
        engine = engine_of(tree, [own], observer=records.append)
        outputs = engine.generate(PROMPTS, MIXED)
        told.append(
            [
                [(record.request_id, sorted(_paths(record.tree)), len(record.path), record.token_ids) for record in records],
                [output.stats.acceptance.to_json() for output in outputs],
                sorted(engine.acceptance.of("toy").rows()),
                own.alpha,
            ]
        )
    assert told[0] == told[1]


def test_the_host_waits_once_a_step(steps: dict[str, int]) -> None:
    engine = engine_of(TREES[1])
    engine.generate(PROMPTS, MIXED)
    assert steps["waits"] == engine.profile().steps == steps["once"] + 1, "the prompts' step is decided without trees"


@pytest.mark.usefixtures("time_is_free")
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("tree", TREES[1::2], ids=str)
def test_preempted_requests_and_trees_cut_by_room(tree: Tree, params: SamplingParams, steps: dict[str, int]) -> None:
    prompts, params = [[1 + i, 2, 3] * 3 for i in range(4)], replace(params, max_tokens=40)
    sizes: list[int] = []
    engine = engine_of(
        tree, [draft(block_size=64)], observer=lambda record: sizes.append(len(record.tree.tokens)), block_size=4, num_blocks=21, max_len=64
    )
    ids = [engine.add(prompt, params) for prompt in prompts]
    texts = run_checked(engine, dict(zip(ids, prompts, strict=True)))
    assert [texts[request_id] for request_id in ids] == wanted(prompts, params)
    assert engine.statistics().preemptions > 0 and len(set(sizes)) > 3 and steps["once"] > 5


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_batch_over_any_tree(data: st.DataObject) -> None:
    draw = data.draw
    tree = draw(
        st.one_of(
            st.lists(st.integers(1, 3), min_size=1, max_size=4).map(lambda widths: TreeSpec(widths=tuple(widths))),
            st.builds(TreeLimits, depth=st.integers(1, 6), branch=st.integers(1, 3), budget=st.integers(1, 15)),
        )
    )
    tokens = st.integers(0, VOCAB - 1)
    prompts = draw(st.lists(st.lists(tokens, min_size=1, max_size=30), min_size=1, max_size=5))
    params = [
        SamplingParams(
            max_tokens=draw(st.integers(1, 15)), temperature=draw(st.sampled_from([0.0, 0.7, 1.2])), seed=draw(st.integers(0, 9))
        )
        for _ in prompts
    ]
    engine = engine_of(
        tree,
        [draft(noise=draw(st.sampled_from([0.0, 0.3, 0.8])), alpha=draw(st.sampled_from([None, 0.5])))],
        pass_tokens=draw(st.integers(6, 64)),
        max_batch=draw(st.integers(1, 4)),
        max_len=48,
        block_size=draw(st.sampled_from([4, 16, None])),
    )
    ids = [engine.add(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    texts = run_checked(engine, dict(zip(ids, prompts, strict=True)))
    assert [texts[request_id] for request_id in ids] == wanted(prompts, params, max_len=48)


@pytest.mark.parametrize("tree", TREES[:2], ids=str)
def test_a_text_that_ends_within_an_accepted_path(tree: Tree, steps: dict[str, int]) -> None:
    own, ends = [draft(noise=0.0, alpha=1.0)], []
    for prompt, params in zip(PROMPTS, MIXED, strict=True):
        eos = tuple(plain(toy(), prompt, params)[5:6])
        engine = engine_of(tree, own, eos_token_ids=eos)
        (output,) = engine.generate([prompt], params)
        assert output.token_ids == plain(toy(), prompt, params, eos=eos)
        ends.append(output.finish_reason)
        assert not engine.cache.request_ids
    assert ends == ["stop"] * 3 and steps["once"] > 2


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_nodes_that_did_not_grow_are_padding(params: SamplingParams, steps: dict[str, int]) -> None:
    sizes: list[int] = []
    engine = engine_of(TREES[1], vocab_limit=2, observer=lambda record: sizes.append(len(record.tree.tokens)))
    texts = [output.token_ids for output in engine.generate([[0, 1], [1]], params)]
    assert texts == [output.token_ids for output in engine_of(TREES[1], [], vocab_limit=2).generate([[0, 1], [1]], params)]
    assert max(sizes) == 1 + 2 + 4 + 4, "there are two tokens, and room for three children of the root"
    assert steps["once"] > 3 and not steps["twice"]


def test_a_draft_model_whose_logits_are_no_numbers(steps: dict[str, int]) -> None:
    class Broken(ToyModel):
        def logits_of(self, path: Sequence[int]) -> Any:
            return super().logits_of(path) * np.float32("nan" if len(path) % 4 else 1)

    broken = SsmDrafter("toy", toy_device.on_device(Broken(vocab_size=VOCAB, seed=4)), max_requests=4, block_size=300, alpha=0.5)
    with pytest.warns(RuntimeWarning, match="'toy' drafts nothing where its logits are not finite"):
        outputs = engine_of(TREES[1], [broken]).generate(PROMPTS, SEEDED)
    assert [output.token_ids for output in outputs] == wanted(PROMPTS, SEEDED)
    assert steps["once"] > 5


def test_logits_that_are_no_numbers_end_only_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(TREES[1])
    ids = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    engine.step()
    forward = engine.model.forward

    def spoiled(batch: Any, kv: Any) -> torch.Tensor:
        logits = forward(batch, kv)
        logits[torch.from_numpy(batch.request_rows[batch.output_rows] == 1)] = math.nan
        return logits

    monkeypatch.setattr(engine.model, "forward", spoiled)
    outputs = {chunk.request_id: chunk.output for chunk in engine.step()}
    assert outputs[ids[1]].finish_reason == "error" and "not finite" in outputs[ids[1]].error
    assert [outputs[ids[place]] for place in (0, 2)] == [None, None]


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"logprobs": 1}, {}),
        ({"prompt_logprobs": 1}, {}),
        ({"logit_bias": {3: 2.0}}, {}),
        ({}, {"verifier_name": "mss"}),
        ({}, {"with": NgramDrafter()}),
    ],
    ids=["logprobs", "prompt logprobs", "rules", "stochastic", "merged"],
)
def test_what_needs_the_trees_before_waits_for_them(changes: Any, options: dict[str, Any], steps: dict[str, int]) -> None:
    other = options.pop("with", None)
    engine = engine_of(TREES[1], [draft(), other] if other else None, **options)
    engine.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=0.9, seed=2, **changes))
    assert not steps["once"]


def test_a_drafter_that_raises_steps_aside(monkeypatch: pytest.MonkeyPatch, steps: dict[str, int]) -> None:
    def raising(drafter: SsmDrafter, requests: Any) -> Any:
        raise KeyError("lost")

    monkeypatch.setattr(SsmDrafter, "begin_on_device", raising)
    with pytest.warns(RuntimeWarning, match="'toy' raised KeyError"):
        outputs = engine_of(TREES[1]).generate(PROMPTS, SEEDED)
    assert [output.token_ids for output in outputs] == wanted(PROMPTS, SEEDED)
    assert not steps["once"]


def test_other_drafters_that_propose_nothing_keep_nobody_waiting(steps: dict[str, int]) -> None:
    prompts = [[3, 1, 7, 3, 1, 7, 3], [5, 6], list(range(12))]
    engine = engine_of(TREES[1], [NgramDrafter(), draft()])
    assert [output.token_ids for output in engine.generate(prompts, SEEDED)] == wanted(prompts, SEEDED)
    assert steps["once"] and steps["twice"]


def test_a_head_on_the_states_of_the_llm(steps: dict[str, int]) -> None:
    model = toy_device.that_walks(StatefulToy(vocab_size=16, seed=3))
    own = head_drafter(toy_device.on_device(ToyHead(vocab_size=16, seed=3)), alpha=1.0)
    engine = engine_of(TREES[0], [own], model=model)
    for output, prompt in zip(engine.generate(PROMPTS, SEEDED), PROMPTS, strict=True):
        assert output.token_ids == plain(StatefulToy(vocab_size=16, seed=3), prompt, SEEDED)
        assert output.stats.steps == 1 + -(-19 // 4), "everything is accepted"
    assert steps["once"] > 3 and not steps["twice"]


def test_more_requests_than_a_pass_of_the_draft_takes(steps: dict[str, int]) -> None:
    prompts = [[1 + i, 2] for i in range(4)]
    engine = engine_of(TREES[1], [draft(max_pass_tokens=13)])
    assert [output.token_ids for output in engine.generate(prompts, SEEDED)] == wanted(prompts, SEEDED)
    assert steps["once"] > 5 and not steps["twice"]


def _paths(tree: Any) -> list[tuple[int, ...]]:
    found = [(tree.tokens[0],)]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], token))
    return found
