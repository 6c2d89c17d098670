"""Tiny random decoders of every family that README names, and what each must show: its greedy text is Hugging Face's."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import transformers as hf
from transformers import PreTrainedConfig, PreTrainedModel

from compile_once import compiled
from expert_models import MODELS as EXPERTS
from expert_models import SIZES as EXPERT_SIZES
from flexspec import SamplingParams
from flexspec.api.llm import LLM
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt, tiny_of

LENGTHS = {1: 120, 7: 30, 33: 30, 100: 20}
"""Of prompts, and how many tokens each is continued by; the longest text has 15 different tokens."""

COMMON: dict[str, Any] = {"vocab_size": TINY_VOCAB, "tie_word_embeddings": False} | dict.fromkeys(
    ("eos_token_id", "bos_token_id", "pad_token_id")
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
LLAMA = SIZES | {"intermediate_size": 64, "num_key_value_heads": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
OPT = SIZES | {"ffn_dim": 64}
FALCON = SIZES
BLOOM = {"hidden_size": 48, "n_layer": 2, "n_head": 6}
MPT = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
GRANITE = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LOCAL = {"num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8, "intermediate_size": 64}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "num_key_value_heads": 4}
GROUPED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1}
PARALLEL = {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    """The config field of one kind of rotary scaling."""
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **parameters}}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A config, and the seed of weights with which a single text varies."""

    config: type[PreTrainedConfig]
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def _family(config: type[PreTrainedConfig], *options: dict[str, Any], seed: int = 0) -> Family:
    merged = dict(COMMON)
    for one in options:
        merged |= one
    return Family(config=config, options=merged, seed=seed)


THROUGH_THE_INTERFACE: dict[str, Family] = {
    "llama": _family(hf.LlamaConfig, LLAMA, seed=1),
    "llama, linear": _family(hf.LlamaConfig, LLAMA, rope("linear", factor=4.0), seed=1),
    "llama, llama3": _family(hf.LlamaConfig, LLAMA, rope("llama3", **LLAMA3), seed=1),
    "llama, yarn": _family(hf.LlamaConfig, LLAMA, rope("yarn", factor=4.0, original_max_position_embeddings=128), seed=1),
    "mistral": _family(hf.MistralConfig, LLAMA, {"sliding_window": 8}),
    "qwen2": _family(hf.Qwen2Config, LLAMA),
    "qwen2, window": _family(hf.Qwen2Config, LLAMA, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": _family(hf.Qwen3Config, LLAMA, {"head_dim": 8}),
    "opt": _family(hf.OPTConfig, OPT, {"word_embed_proj_dim": 32}),
    "opt-350m": _family(hf.OPTConfig, OPT, {"word_embed_proj_dim": 16, "do_layer_norm_before": False}, seed=1),
    "gpt2": _family(hf.GPT2Config, GPT),
    "gpt2, layer scale": _family(hf.GPT2Config, GPT, {"scale_attn_by_inverse_layer_idx": True}),
    "gptj": _family(hf.GPTJConfig, GPT, {"rotary_dim": 4}, seed=9),
    "gpt_neox": _family(hf.GPTNeoXConfig, SIZES, {"intermediate_size": 64, "rotary_pct": 0.5}),
    "gpt_neox, sequential": _family(hf.GPTNeoXConfig, SIZES, {"intermediate_size": 64, "use_parallel_residual": False}, seed=9),
    "gpt_bigcode": _family(hf.GPTBigCodeConfig, GPT, {"multi_query": True}),
    "starcoder2": _family(hf.Starcoder2Config, LLAMA, {"sliding_window": 8}),
    "gemma": _family(hf.GemmaConfig, LLAMA, {"head_dim": 8}),
    "gemma2": _family(hf.Gemma2Config, LLAMA, CAPS, MIXED, {"head_dim": 8, "query_pre_attn_scalar": 16}),
    "gemma3": _family(hf.Gemma3TextConfig, LLAMA, MIXED, {"head_dim": 8, "query_pre_attn_scalar": 16}),
    "phi": _family(hf.PhiConfig, LLAMA, {"partial_rotary_factor": 0.5}, seed=1),
    "phi, norms of heads": _family(hf.PhiConfig, LLAMA, {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "phi3": _family(hf.Phi3Config, LLAMA, {"sliding_window": 8}),
    "phi3, partial": _family(hf.Phi3Config, LLAMA, {"partial_rotary_factor": 0.5}),
    "stablelm": _family(hf.StableLmConfig, LLAMA, {"partial_rotary_factor": 0.5}),
    "stablelm, parallel": _family(hf.StableLmConfig, LLAMA, PARALLEL),
    "olmo": _family(hf.OlmoConfig, LLAMA),
    "olmo, clipped": _family(hf.OlmoConfig, LLAMA, {"clip_qkv": 1.0}),
    "olmo2": _family(hf.Olmo2Config, LLAMA, seed=2),
    "cohere": _family(hf.CohereConfig, LLAMA, {"logit_scale": 0.25}),
    "cohere, norms of heads": _family(hf.CohereConfig, LLAMA, {"logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": _family(hf.Cohere2Config, LLAMA, {"num_hidden_layers": 4, "logit_scale": 0.25, "sliding_window": 8}),
    "granite": _family(hf.GraniteConfig, LLAMA, GRANITE),
    "smollm3": _family(hf.SmolLM3Config, LLAMA, {"no_rope_layers": [1, 0]}, seed=1),
    "glm": _family(hf.GlmConfig, LLAMA, {"head_dim": 8}, seed=2),
    "codegen": _family(hf.CodeGenConfig, GPT, {"rotary_dim": 4}, seed=7),
    "nemotron": _family(hf.NemotronConfig, LLAMA),
    "persimmon": _family(hf.PersimmonConfig, SIZES, {"intermediate_size": 64}, seed=1),
    "xglm": _family(hf.XGLMConfig, {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 512}),
    "hunyuan": _family(hf.HunYuanDenseV1Config, LLAMA, {"head_dim": 8}),
    "olmo3": _family(hf.Olmo3Config, LLAMA, {"sliding_window": 8}),
    "exaone4": _family(hf.Exaone4Config, LLAMA, {"head_dim": 8, "sliding_window": 8}),
    "seed_oss": _family(hf.SeedOssConfig, LLAMA, {"head_dim": 8}),
    "ernie4_5": _family(hf.Ernie4_5Config, LLAMA, {"head_dim": 8}, seed=2),
    "ministral": _family(hf.MinistralConfig, LLAMA, {"head_dim": 8, "sliding_window": 8}),
}

WRITTEN_OUT: dict[str, Family] = {
    "bloom": _family(hf.BloomConfig, BLOOM),
    "mpt": _family(hf.MptConfig, MPT),
    "gpt_neo": _family(hf.GPTNeoConfig, {"hidden_size": 32, "max_position_embeddings": 512}, LOCAL),
    "falcon, one KV head": _family(hf.FalconConfig, FALCON, {"multi_query": True, "parallel_attn": True}),
    "falcon, new": _family(hf.FalconConfig, FALCON, {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon, ALiBi": _family(hf.FalconConfig, FALCON, {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
}

_EXPERT_SEEDS = {"olmoe": 1, "qwen2_moe": 1}
WITH_EXPERTS: dict[str, Family] = {
    name: Family(config=config, options=EXPERT_SIZES | options, seed=_EXPERT_SEEDS.get(name, 0))
    for name, (config, options) in EXPERTS.items()
} | {
    "deepseek_v3": _family(hf.DeepseekV3Config, LLAMA, LATENT, GROUPED, {"head_dim": 4, "first_k_dense_replace": 1}),
    "glm4_moe": _family(hf.Glm4MoeConfig, LLAMA, GROUPED, {"head_dim": 8, "first_k_dense_replace": 1}),
}

FAMILIES = THROUGH_THE_INTERFACE | WRITTEN_OUT | WITH_EXPERTS


def family(name: str, **changed: Any) -> PreTrainedModel:
    """A new float32 model, some config fields changed."""
    given = FAMILIES[name]
    return tiny_of(given.config(**(given.options | changed)), given.seed)


@cache
def references(name: str) -> list[list[int]]:
    """What Hugging Face's greedy `generate` makes of prompts of each length."""
    return [greedy_reference(family(name), random_prompt(length, seed=length), n) for length, n in LENGTHS.items()]


ON_PYTORCH = {"hunyuan", "deepseek_v3", "glm4_moe"}
"""What README says of where families run: these have an operator without a native form."""


def check_text(name: str, ssms: list[str]) -> LLM:
    """Assert that flexspec writes what Hugging Face writes, with drafts of which some are accepted and some are not, or without."""
    llm = compiled(family(name), ssms, max_len=None)
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=n, temperature=0) for n in LENGTHS.values()])
    assert [output.token_ids for output in outputs] == references(name), ssms
    accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
    assert 0 < accepted < drafted if ssms else drafted == 0
    assert llm.plan.llm.model.lowering.target == ("cpu-torch" if name in ON_PYTORCH else "cpu-native")
    return llm
