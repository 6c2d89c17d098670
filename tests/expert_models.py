"""Tiny random mixture-of-experts models of every family."""

from typing import Any

from transformers import GptOssConfig, MixtralConfig, OlmoeConfig, PreTrainedConfig, PreTrainedModel, Qwen2MoeConfig, Qwen3MoeConfig

from tiny_models import TINY_POSITIONS, TINY_VOCAB, tiny_of

SIZES: dict[str, Any] = {
    "vocab_size": TINY_VOCAB,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": TINY_POSITIONS,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": TINY_POSITIONS // 4}

# Sizes of experts and numbers of them are none that kernels work in.
MODELS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "mixtral": (MixtralConfig, {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (Qwen3MoeConfig, {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": False}),
    "qwen3_moe_with_dense_layer": (
        Qwen3MoeConfig,
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True, "mlp_only_layers": [0]},
    ),
    "olmoe": (OlmoeConfig, {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False}),
    "gpt_oss": (
        GptOssConfig,
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": _YARN,
        },
    ),
    "qwen2_moe": (
        Qwen2MoeConfig,
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
    ),
}


def expert_model(name: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A float32 random model: hidden 32, 2 layers of 4 query heads and 2 KV heads."""
    config_class, own = MODELS[name]
    return tiny_of(config_class(**(SIZES | own | overrides)), seed)
