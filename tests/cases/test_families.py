"""Decoders of every family: greedy text is Hugging Face's, with speculation and without; and every attribute of attention counts."""

from typing import Any

import pytest
import torch

from family_models import FAMILIES, THROUGH_THE_INTERFACE, check_text, family
from tiny_models import random_prompt

# Together with those of the other files they have every mechanism; the others run with all tests.
QUICK = {
    "gemma2": "windows in some layers, two soft caps, a scale of its own",
    "gptj": "interleaved rotary embedding of a part of each head",
    "opt-350m": "learned positions, norms after the layers, projections around the decoder",
    "gpt_bigcode": "one KV head",
}


@pytest.mark.parametrize("name", QUICK)
def test_text_is_hugging_faces(name: str, time_is_free: None) -> None:
    check_text(name, [])
    check_text(name, ["suffix"])


@pytest.mark.slow
@pytest.mark.parametrize("ssms", [[], ["suffix", "prune:1"]], ids=["plain", "drafts"])
@pytest.mark.parametrize("name", THROUGH_THE_INTERFACE)
def test_text_of_all_is_hugging_faces(name: str, ssms: list[str], time_is_free: None) -> None:
    check_text(name, ssms)


ATTRIBUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "soft cap of scores": ("gemma2", {"attn_logit_softcapping": None}),
    "soft cap of logits": ("gemma2", {"final_logit_softcapping": None}),
    "window": ("gemma2", {"sliding_window": 16}),
    "which layers have it": ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}),
    "scale": ("gemma2", {"query_pre_attn_scalar": 8}),
    "scale of a layer": ("gpt2, layer scale", {"scale_attn_by_inverse_layer_idx": False}),
    "logit scale": ("cohere", {"logit_scale": 0.5}),
    "rotated dims": ("gpt_neox", {"rotary_pct": 0.25, "rope_parameters": None}),
    "parallel residual": ("gpt_neox", {"use_parallel_residual": False}),
    "dims of pairs": ("gptj", {"rotary_dim": 8}),
    "linear factor": ("llama, linear", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "local window": ("gpt_neo", {"window_size": 16}),
    "window of a layer": ("qwen2, window", {"max_window_layers": 0}),
    "layers without rotary": ("smollm3", {"no_rope_layers": [1, 1]}),
    "residual multiplier": ("granite", {"residual_multiplier": 1.0}),
    "attention multiplier": ("granite", {"attention_multiplier": 0.4}),
    "clipped values": ("olmo, clipped", {"clip_qkv": None}),
    "window of an expert model": ("gpt_oss", {"sliding_window": 16}),
}


def _difference(name: str, **changed: Any) -> float:
    """Of the logits of one prompt, the same weights in both."""
    module, other = family(name), family(name, **changed)
    other.load_state_dict(module.state_dict(), strict=False)
    ids = torch.tensor([random_prompt(40)])
    with torch.no_grad():
        return float((module(ids).logits - other(ids).logits).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_each_attribute_matters(attribute: str) -> None:
    """An operator that ignored it could not pass the tests above."""
    name, changed = ATTRIBUTES[attribute]
    assert _difference(name, **changed) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gpt_oss", "sinks"),
        ("opt-350m", "embed_positions"),
        ("gpt2", "wpe"),
        ("qwen2", "self_attn.q_proj.bias"),
        ("phi, norms of heads", "q_layernorm"),
    ],
)
def test_each_parameter_of_attention_matters(name: str, parts: str) -> None:
    module, ids = family(name), torch.tensor([random_prompt(40)])
    with torch.no_grad():
        before = module(ids).logits
        changed = [parameter for key, parameter in module.named_parameters() if parts in key]
        for parameter in changed:
            parameter.copy_(parameter.flip(0) + 0.5)
        assert changed and (module(ids).logits - before).abs().max() > 1e-3


def test_names_of_families_are_their_own() -> None:
    assert len({(one.config, str(one.options)) for one in FAMILIES.values()}) == len(FAMILIES)
