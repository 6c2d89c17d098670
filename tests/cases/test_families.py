"""Decoders of Hugging Face's that go through its attention interface: greedy text is theirs, with speculation and without."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PreTrainedConfig, PreTrainedModel

from compile_once import compiled
from flexspec import SamplingParams
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt, tiny_of

LENGTHS = {1: 40, 7: 40, 100: 20}  # of prompts, and new tokens
MIN_DISTINCT = 15

COMMON: dict[str, Any] = {"vocab_size": TINY_VOCAB, "tie_word_embeddings": False} | dict.fromkeys(
    ("eos_token_id", "bos_token_id", "pad_token_id")
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
LLAMA = SIZES | {"intermediate_size": 64, "num_key_value_heads": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
FOUR = {"num_hidden_layers": 4}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
GRANITE = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **parameters}}


LONGROPE = rope("longrope", original_max_position_embeddings=64, factor=4.0, short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[4.0] * 4)
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
OPT_350M = SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 16, "do_layer_norm_before": False}
LOCAL = {"num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8, "intermediate_size": 64}
PARALLEL = {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5}

Family = tuple[type[PreTrainedConfig], dict[str, Any]]
FAMILIES: dict[str, Family] = {
    "llama, linear": (hf.LlamaConfig, LLAMA | rope("linear", factor=4.0)),
    "llama, llama3": (hf.LlamaConfig, LLAMA | rope("llama3", **LLAMA3)),
    "llama, yarn": (hf.LlamaConfig, LLAMA | rope("yarn", factor=4.0, original_max_position_embeddings=128)),
    "qwen2, window": (hf.Qwen2Config, LLAMA | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "opt-350m": (hf.OPTConfig, OPT_350M),
    "gpt2, layer scale": (hf.GPT2Config, GPT | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt_neo": (hf.GPTNeoConfig, {"hidden_size": 32, "max_position_embeddings": 512} | LOCAL),
    "gptj": (hf.GPTJConfig, GPT | {"rotary_dim": 4}),
    "gpt_neox": (hf.GPTNeoXConfig, SIZES | {"intermediate_size": 64, "rotary_pct": 0.5}),
    "gpt_neox, sequential": (hf.GPTNeoXConfig, SIZES | {"intermediate_size": 64, "use_parallel_residual": False}),
    "gpt_bigcode": (hf.GPTBigCodeConfig, GPT | {"multi_query": True}),
    "starcoder2": (hf.Starcoder2Config, LLAMA | {"sliding_window": 8}),
    "gemma": (hf.GemmaConfig, LLAMA | {"head_dim": 8}),
    "gemma2": (hf.Gemma2Config, LLAMA | CAPS | MIXED | {"head_dim": 8, "query_pre_attn_scalar": 16}),
    "gemma3": (hf.Gemma3TextConfig, LLAMA | MIXED | {"head_dim": 8, "query_pre_attn_scalar": 16}),
    "phi": (hf.PhiConfig, LLAMA | {"partial_rotary_factor": 0.5}),
    "phi, norms of heads": (hf.PhiConfig, LLAMA | {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "phi3": (hf.Phi3Config, LLAMA | {"sliding_window": 8}),
    "phi3, partial": (hf.Phi3Config, LLAMA | {"partial_rotary_factor": 0.5}),
    "stablelm": (hf.StableLmConfig, LLAMA | {"partial_rotary_factor": 0.5}),
    "stablelm, parallel": (hf.StableLmConfig, LLAMA | PARALLEL),
    "olmo": (hf.OlmoConfig, LLAMA),
    "olmo, clipped": (hf.OlmoConfig, LLAMA | {"clip_qkv": 1.0}),
    "olmo2": (hf.Olmo2Config, LLAMA),
    "cohere": (hf.CohereConfig, LLAMA | {"logit_scale": 0.25}),
    "cohere, norms of heads": (hf.CohereConfig, LLAMA | {"logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": (hf.Cohere2Config, LLAMA | FOUR | {"logit_scale": 0.25, "sliding_window": 8}),
    "granite": (hf.GraniteConfig, LLAMA | GRANITE),
    "smollm3": (hf.SmolLM3Config, LLAMA | {"no_rope_layers": [1, 0]}),
    "glm": (hf.GlmConfig, LLAMA | {"head_dim": 8}),
    "codegen": (hf.CodeGenConfig, GPT | {"rotary_dim": 4}),
}
# Together they have every mechanism; the others run with all tests.
QUICK = ("gemma2", "gptj")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]


def family(name: str, **changed: Any) -> PreTrainedModel:
    kind, options = FAMILIES[name]
    return tiny_of(kind(**(COMMON | options | changed)))


def texts(module: PreTrainedModel, ssms: Sequence[str], prompts: Sequence[list[int]], lengths: Sequence[int]) -> tuple[Any, Any]:
    llm = compiled(module, ssms, max_len=None)
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=n, temperature=0) for n in lengths])
    return llm, outputs


@pytest.mark.parametrize("name", EACH)
def test_text_is_hugging_faces(name: str, time_is_free: None) -> None:
    module = family(name)
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    references = [greedy_reference(module, prompt, n) for prompt, n in zip(prompts, LENGTHS.values(), strict=True)]
    assert len({token for text in references for token in text}) >= MIN_DISTINCT
    for ssms in ([], ["suffix", "prune:1"]):
        _, outputs = texts(module, ssms, prompts, list(LENGTHS.values()))
        assert [output.token_ids for output in outputs] == references
        accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
        assert 0 < accepted < drafted or not ssms


def _set(*names: str, value: Any) -> Callable[[PreTrainedModel], None]:
    def change(module: PreTrainedModel) -> None:
        for part in [module.config, *module.modules()]:
            for name in names:
                if hasattr(part, name):
                    setattr(part, name, value)

    return change


ATTRIBUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "soft cap of scores": ("gemma2", {"attn_logit_softcapping": None}),
    "soft cap of logits": ("gemma2", {"final_logit_softcapping": None}),
    "window": ("gemma2", {"sliding_window": 16}),
    "scale": ("gemma2", {"query_pre_attn_scalar": 8}),
    "logit scale": ("cohere", {"logit_scale": 0.5}),
    "rotated dims": ("gpt_neox", {"rotary_pct": 0.25, "rope_parameters": None}),
    "parallel residual": ("gpt_neox", {"use_parallel_residual": False}),
    "dims of pairs": ("gptj", {"rotary_dim": 8}),
    "local window": ("gpt_neo", {"window_size": 16}),
    "layers without rotary": ("smollm3", {"no_rope_layers": [1, 1]}),
    "residual multiplier": ("granite", {"residual_multiplier": 1.0}),
    "attention multiplier": ("granite", {"attention_multiplier": 0.4}),
    "clipped values": ("olmo, clipped", {"clip_qkv": None}),
}


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_each_attribute_matters(attribute: str) -> None:
    """An operator that ignored it could not pass the test above."""
    name, changed = ATTRIBUTES[attribute]
    module, other = family(name), family(name, **changed)
    other.load_state_dict(module.state_dict(), strict=False)
    ids = torch.tensor([random_prompt(40)])
    with torch.no_grad():
        assert (module(ids).logits - other(ids).logits).abs().max() > 1e-3
