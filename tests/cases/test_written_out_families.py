"""Decoders of Hugging Face's that write attention out: greedy text is theirs, with speculation and without; and those that are refused."""

import copy

import pytest
import torch
import transformers as hf

from compile_once import compiled, recorded
from family_models import COMMON, LENGTHS, WRITTEN_OUT, check_text, family, references
from flexspec import SamplingParams, UsageError
from tiny_models import random_prompt, tiny_of


def test_text_is_hugging_faces(time_is_free: None) -> None:
    """ALiBi, added by the product itself."""
    check_text("bloom", [])
    check_text("bloom", ["suffix"])


@pytest.mark.slow
@pytest.mark.parametrize("ssms", [[], ["suffix", "prune:1"]], ids=["plain", "drafts"])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_text_of_all_is_hugging_faces(name: str, ssms: list[str], time_is_free: None) -> None:
    check_text(name, ssms)


def test_slopes_matter() -> None:
    """An operator that ignored them could not pass the test above."""
    module, ids = family("mpt"), torch.tensor([random_prompt(40)])
    gentler = module.transformer.build_mpt_alibi_tensor(4, 512, alibi_bias_max=2)
    with torch.no_grad():
        before = module(ids).logits
        module.transformer.build_mpt_alibi_tensor = lambda *sizes, **options: gentler
        assert (module(ids).logits - before).abs().max() > 1e-3


@pytest.mark.parametrize("name", [pytest.param("bloom", marks=pytest.mark.slow), "mpt"])
def test_row_21_alibi_in_trees_of_width_3(name: str, time_is_free: None) -> None:
    """Six heads, whose slopes are not all powers of two, and four; nodes of one depth are at one position."""
    llm = compiled(family(name), ["prune:1", "ngram"], tree=[3, 3], max_len=None)
    records = recorded(llm)
    prompts = [random_prompt(length, seed=length) for length in LENGTHS]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=n) for n in LENGTHS.values()])
    assert [output.token_ids for output in outputs] == references(name)
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)
    assert max(record.tree.parents.count(0) for record in records) >= 3
    assert any(list(record.path) != list(range(len(record.path))) for record in records), "no accepted node was out of place"


LONG_ALIBI = {
    "bloom": (hf.BloomConfig, {"hidden_size": 96, "n_layer": 2, "n_head": 12}),
    "mpt": (hf.MptConfig, {"d_model": 128, "n_layers": 2, "n_heads": 32, "max_seq_len": 2048}),
}


@pytest.mark.slow
@pytest.mark.parametrize("length", [60, 600, 2000])
@pytest.mark.parametrize("name", LONG_ALIBI)
def test_bfloat16_biases_are_no_less_exact_than_hugging_faces(name: str, length: int) -> None:
    """Slopes stay in float32 here; the reference has the weights of bfloat16 and computes in float32."""
    config, options = LONG_ALIBI[name]
    module = tiny_of(config(**(COMMON | options))).bfloat16()
    ids = random_prompt(length, seed=length)
    with torch.no_grad():
        theirs, exact = (one(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1) for one in (module, copy.deepcopy(module).float()))
    (output,) = compiled(module, [], max_batch=1, max_len=2048).generate(ids, SamplingParams(max_tokens=1, logprobs=20))
    top = output.logprobs[0].top
    errors = [max(abs(float(given[token] - exact[token])) for token in top) for given in (top, theirs)]
    assert errors[0] < max(1.2 * errors[1], 0.05) and errors[0] < 0.1


@pytest.mark.slow
def test_a_text_ends_where_a_bias_stops_to_grow_evenly() -> None:
    llm = compiled(family("falcon, ALiBi"), [], max_len=None)
    (output,) = llm.generate([random_prompt(250)], SamplingParams(max_tokens=20, temperature=0))
    assert output.finish_reason == "length" and len(output.token_ids) == 257 - 250


HYBRID = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 2}
REFUSED = {
    "mamba": (hf.MambaForCausalLM, hf.MambaConfig, {}, "a state can't be rolled back"),
    "rwkv": (hf.RwkvForCausalLM, hf.RwkvConfig, {}, "a state can't be rolled back"),
    "minimax": (hf.MiniMaxForCausalLM, hf.MiniMaxConfig, HYBRID, "a state can't be rolled back"),
    "qwen3_next": (hf.Qwen3NextForCausalLM, hf.Qwen3NextConfig, {"num_attention_heads": 4, "head_dim": 8}, "a state can't be rolled back"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_memories_are_refused(name: str) -> None:
    kind, config, options, reason = REFUSED[name]
    module = kind(config(**(COMMON | {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2} | options))).eval()
    with pytest.raises(UsageError, match=rf"model {kind.__name__}: .*{reason}.*what is supported is"):
        compiled(module, [])
