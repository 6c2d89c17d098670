"""Mixture-of-experts families write what Hugging Face writes, with speculation and without, whatever shares the pass."""

from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from compile_once import compiled, prompt
from expert_models import MODELS, expert_model
from flexspec import SamplingParams
from tiny_models import greedy_reference

LENGTHS = {1: 120, 9: 30, 100: 20}  # of prompts, and new tokens
FEWER = {1: 40, 9: 20, 100: 10}
SEEDS = {"qwen2_moe": 1}
SLOW = ("qwen3_moe", "qwen3_moe_with_dense_layer", "olmoe", "qwen2_moe")


@cache
def module_of(name: str) -> PreTrainedModel:
    return expert_model(name, seed=SEEDS.get(name, 0))


@cache
def references(name: str) -> list[list[int]]:
    return [greedy_reference(module_of(name), list(prompt(length)), n) for length, n in LENGTHS.items()]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS])
def test_every_family_writes_what_hugging_face_writes(name, time_is_free):
    lengths = FEWER if name == "gpt_oss" else LENGTHS  # more of it, slowly, below
    expected = [reference[:n] for reference, n in zip(references(name), lengths.values(), strict=True)]
    params = [SamplingParams(max_tokens=n) for n in lengths.values()]
    for ssms in ([], ["suffix", "prune:1"]):
        llm = compiled(module_of(name), ssms)
        outputs = llm.generate([list(prompt(length)) for length in LENGTHS], params)
        assert [output.token_ids for output in outputs] == expected, (name, ssms)
        drafted, accepted = (sum(getattr(output.stats, what) for output in outputs) for what in ("drafted", "accepted"))
        assert 0 < accepted < drafted if ssms else drafted == 0
    assert "flexspec.routed_experts.default" in llm.plan.llm.model.lowering.implementations


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_without_native_kernels_they_write_the_same(name):
    llm = compiled(module_of(name), ["prune:1"], tree=[2, 2, 1], native=False)
    assert llm.plan.llm.model.lowering.target == "cpu-torch"
    outputs = llm.generate([list(prompt(length)) for length in LENGTHS], [SamplingParams(max_tokens=n) for n in LENGTHS.values()])
    assert [output.token_ids for output in outputs] == references(name)
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_softmax_routed_experts_are_native_and_row_invariant(name):
    plan = compiled(module_of(name)).plan.llm
    assert plan.model.lowering.target == "cpu-native"
    assert plan.model.lowering.implementations["flexspec.routed_experts.default"] == "native routed_experts"
    assert plan.row_invariance.chains and plan.row_invariance.trees


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mixtral", {"num_experts_per_tok": 1}),
        ("mixtral", {"hidden_act": "gelu"}),
        ("qwen3_moe", {"norm_topk_prob": True}),
        ("gpt_oss", {"swiglu_limit": 0.5}),
        ("gpt_oss", {"swiglu_alpha": 1.0}),
        ("gpt_oss", {"sliding_window": 4}),
    ],
)
def test_attributes_matter(name, change):
    """What is captured of each attribute is what the references above depend on."""
    ids = torch.tensor([list(prompt(100))])
    changed = expert_model(name, **change)
    changed.load_state_dict(module_of(name).state_dict())
    with torch.no_grad():
        assert (changed(ids).logits - module_of(name)(ids).logits).abs().max() > 1e-3
