"""Mixture-of-experts families write what Hugging Face writes, with speculation and without, whatever shares the pass."""

import pytest
import torch

from compile_once import compiled, prompt
from expert_models import expert_model
from family_models import LENGTHS, WITH_EXPERTS, check_text, family, references
from flexspec import SamplingParams
from tiny_models import random_prompt


def _check(name: str, ssms: list[str]) -> None:
    llm = check_text(name, ssms)
    assert "flexspec.routed_experts.default" in llm.plan.llm.model.lowering.implementations


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_text_is_hugging_faces(name: str, time_is_free: None) -> None:
    """The second has attention sinks, and windows in some layers."""
    _check(name, [])
    _check(name, ["suffix"])


@pytest.mark.slow
@pytest.mark.parametrize("ssms", [[], ["suffix", "prune:1"]], ids=["plain", "drafts"])
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_text_of_all_is_hugging_faces(name: str, ssms: list[str], time_is_free: None) -> None:
    _check(name, ssms)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_without_native_kernels_they_write_the_same(name):
    llm = compiled(family(name), ["prune:1"], tree=[2, 2, 1], native=False)
    assert llm.plan.llm.model.lowering.target == "cpu-torch"
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=n) for n in LENGTHS.values()])
    assert [output.token_ids for output in outputs] == references(name)
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)


@pytest.mark.parametrize("name", ["mixtral", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_softmax_routed_experts_are_native_and_row_invariant(name):
    plan = compiled(family(name)).plan.llm
    assert plan.model.lowering.target == "cpu-native"
    assert plan.model.lowering.implementations["flexspec.routed_experts.default"] == "native routed_experts"
    assert plan.row_invariance.chains and plan.row_invariance.trees


@pytest.mark.slow
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
    changed.load_state_dict(family(name).state_dict())
    with torch.no_grad():
        assert (changed(ids).logits - family(name)(ids).logits).abs().max() > 1e-3
