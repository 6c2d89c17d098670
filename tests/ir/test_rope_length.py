import pytest
import torch

import flexspec
from flexspec import SamplingParams, UsageError
from flexspec.ir.rope_length import fix_rope_length, rope_length
from flexspec.models.shared_copy import shared_copy
from tiny_models import greedy_reference, random_prompt, tiny

FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [4.0] * 4}
ROPES = {
    "longrope": {"original_max_position_embeddings": 64, "factor": 4.0, **FACTORS},
    "dynamic": {"factor": 4.0},
}


def model(kind: str) -> torch.nn.Module:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}
    return tiny("llama", rope_parameters=parameters, max_position_embeddings=64 if kind == "dynamic" else 512)


@pytest.mark.parametrize("kind", ROPES)
def test_frequencies_are_those_of_short_texts(kind: str) -> None:
    module = model(kind)
    assert rope_length(module.config) == (64, kind)
    short, long = (torch.tensor([random_prompt(length)]) for length in (30, 90))
    with torch.no_grad():
        before = module(short).logits
        assert (module(long).logits[:, :30] - module(long[:, :30]).logits).abs().max() > 1e-3, "longer texts have others"
        module(long)
        fixed = shared_copy(module)
        fix_rope_length(fixed)
        assert torch.equal(fixed(short).logits, before)
        assert (fixed(long).logits[:, :30] - fixed(long[:, :30]).logits).abs().max() < 1e-4


def test_other_kinds_have_no_length() -> None:
    assert rope_length(tiny("llama").config) is None
    assert rope_length(tiny("gpt2").config) is None


@pytest.mark.parametrize("kind", ROPES)
def test_models_run_up_to_there_and_no_further(kind: str) -> None:
    module = model(kind)
    llm = flexspec.compile(module, ["suffix", "prune:1"])
    lengths = [1, 20, 60, 63]
    prompts = [random_prompt(length, seed=length) for length in lengths]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=100))
    for length, ids, output in zip(lengths, prompts, outputs, strict=True):
        assert output.token_ids == greedy_reference(module, ids, 64 - length) and output.finish_reason == "length"
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)
    with pytest.raises(UsageError, match="at most 63 leave room"):
        llm.generate(random_prompt(65), SamplingParams(max_tokens=1))
    with pytest.raises(UsageError, match=rf"has 64 positions without its {kind} rotary embedding changing"):
        flexspec.compile(module, [], max_len=65)
