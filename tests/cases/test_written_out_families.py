"""Decoders of Hugging Face's that write attention out: greedy text is theirs, with speculation and without; and those that are refused."""

from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PreTrainedConfig, PreTrainedModel

from compile_once import compiled
from flexspec import SamplingParams, UsageError
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt, tiny_of

LENGTHS = {1: 40, 7: 40, 100: 20}  # of prompts, and new tokens
COMMON: dict[str, Any] = {"vocab_size": TINY_VOCAB, "tie_word_embeddings": False} | dict.fromkeys(
    ("eos_token_id", "bos_token_id", "pad_token_id")
)
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
BLOOM = {"hidden_size": 48, "n_layer": 2, "n_head": 6}
MPT = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}

FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "bloom": (hf.BloomConfig, BLOOM),
    "mpt": (hf.MptConfig, MPT),
    "falcon, one KV head": (hf.FalconConfig, FALCON | {"multi_query": True, "parallel_attn": True}),
    "falcon, new": (hf.FalconConfig, FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon, ALiBi": (hf.FalconConfig, FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
}
QUICK = ("bloom",)
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]


def family(name: str) -> PreTrainedModel:
    kind, options = FAMILIES[name]
    return tiny_of(kind(**(COMMON | options)))


@pytest.mark.parametrize("name", EACH)
def test_text_is_hugging_faces(name: str, time_is_free: None) -> None:
    module = family(name)
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    references = [greedy_reference(module, prompt, n) for prompt, n in zip(prompts, LENGTHS.values(), strict=True)]
    assert len({token for text in references for token in text}) >= 15
    for ssms in ([], ["suffix", "prune:1"]):
        llm = compiled(module, ssms, max_len=None)
        outputs = llm.generate(prompts, [SamplingParams(max_tokens=n, temperature=0) for n in LENGTHS.values()])
        assert [output.token_ids for output in outputs] == references
        accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
        assert 0 < accepted < drafted or not ssms


def test_slopes_matter() -> None:
    """An operator that ignored them could not pass the test above."""
    module, ids = family("mpt"), torch.tensor([random_prompt(40)])
    gentler = module.transformer.build_mpt_alibi_tensor(4, 512, alibi_bias_max=2)
    with torch.no_grad():
        before = module(ids).logits
        module.transformer.build_mpt_alibi_tensor = lambda *sizes, **options: gentler
        assert (module(ids).logits - before).abs().max() > 1e-3


@pytest.mark.slow
def test_a_text_ends_where_a_bias_stops_to_grow_evenly() -> None:
    llm = compiled(family("falcon, ALiBi"), [], max_len=None)
    (output,) = llm.generate([random_prompt(250)], SamplingParams(max_tokens=20, temperature=0))
    assert output.finish_reason == "length" and len(output.token_ids) == 257 - 250


REFUSED = {
    "mamba": (hf.MambaForCausalLM, hf.MambaConfig, {}, "a state can't be rolled back"),
    "rwkv": (hf.RwkvForCausalLM, hf.RwkvConfig, {}, "a state can't be rolled back"),
    "deepseek": (
        hf.DeepseekV3ForCausalLM,
        hf.DeepseekV3Config,
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
        "latent attention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_memories_are_refused(name: str) -> None:
    kind, config, options, reason = REFUSED[name]
    module = kind(config(**(COMMON | {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2} | options))).eval()
    with pytest.raises(UsageError, match=rf"model {kind.__name__}: .*{reason}.*what is supported is"):
        compiled(module, [])
