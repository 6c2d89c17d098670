"""Families whose layers have something of their own run on the native target all the same."""

from collections.abc import Callable

import pytest
import torch
import transformers as hf
from transformers import PreTrainedModel

from expert_models import expert_model
from flexspec.codegen.compile import compile_for_cpu
from flexspec.codegen.row_invariance import probe_row_invariance
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from tiny_models import tiny_of

_ENDS = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
_SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512} | _ENDS
_LLAMA = _SIZES | {"intermediate_size": 64, "num_key_value_heads": 2}
_GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512} | _ENDS
_FALCON = {key: value for key, value in _SIZES.items() if key != "pad_token_id"}

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt_neox": lambda: tiny_of(hf.GPTNeoXConfig(**_SIZES, intermediate_size=64)),
    "gpt_bigcode": lambda: tiny_of(hf.GPTBigCodeConfig(**_GPT, multi_query=True)),
    "codegen": lambda: tiny_of(hf.CodeGenConfig(**_GPT, rotary_dim=4)),
    "bloom": lambda: tiny_of(hf.BloomConfig(vocab_size=64, hidden_size=48, n_layer=2, n_head=6, **_ENDS)),
    "falcon, one KV head": lambda: tiny_of(hf.FalconConfig(**_FALCON, multi_query=True)),
    "falcon, new": lambda: tiny_of(hf.FalconConfig(**_FALCON, num_kv_heads=2, new_decoder_architecture=True)),
    "falcon, ALiBi": lambda: tiny_of(hf.FalconConfig(**_FALCON, alibi=True, multi_query=False, parallel_attn=False, bias=True)),
    "gpt_oss": lambda: expert_model("gpt_oss"),
    "qwen2_moe": lambda: expert_model("qwen2_moe"),
    "nemotron": lambda: tiny_of(hf.NemotronConfig(**_LLAMA)),
    "persimmon": lambda: tiny_of(hf.PersimmonConfig(**_SIZES, intermediate_size=64)),
    "arcee": lambda: tiny_of(hf.ArceeConfig(**_LLAMA)),
    "apertus": lambda: tiny_of(hf.ApertusConfig(**_LLAMA)),
    "olmo, clipped": lambda: tiny_of(hf.OlmoConfig(**_LLAMA, clip_qkv=1.0)),
    "cohere, norms of heads": lambda: tiny_of(hf.CohereConfig(**_LLAMA, use_qk_norm=True)),
    "stablelm, norms of heads": lambda: tiny_of(hf.StableLmConfig(**_LLAMA, qk_layernorm=True)),
}
QUICK = ("gpt_neox",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES])
def test_native_and_row_invariant(name: str) -> None:
    model = capture(FAMILIES[name](), name=name)
    with torch.no_grad():
        run_passes(model, (*RECOGNITION, *SERVING))
    compiled = compile_for_cpu(model, dtype=torch.bfloat16, max_positions=None, max_pass_tokens=64, store=WeightStore())
    assert compiled.lowering.target == "cpu-native", compiled.lowering.reason
    found = probe_row_invariance(compiled)
    assert found.chains and found.trees
