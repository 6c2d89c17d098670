"""Records against the models themselves: FLOPs as PyTorch counts them, bytes as parameters take them (level 0)."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, Qwen2Config, T5Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from expert_models import expert_model
from flexspec.errors import UsageError
from flexspec.passes.blocks import find_blocks, fingerprint
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.search.hollow import hollow_model
from flexspec.passes.search.records import ModelRecord, graph_record, model_record
from graph_cases import Head, captured
from tiny_models import Family


def record_of(family: Family, **overrides: int) -> ModelRecord:
    _, graph = captured(family, **overrides)
    run_passes(graph, FLAT)
    return graph_record(graph)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_flops_are_those_of_the_unrewritten_model(family: Family) -> None:
    module, record = captured(family)[0], record_of(family)
    length = 24
    module.set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(input_ids=torch.zeros((1, length), dtype=torch.int64), use_cache=False)
    counts = counter.get_flop_counts()
    rotary = [sum(flops.values()) for name, flops in counts.items() if name.endswith("rotary_emb")]
    counted = counts["Global"]
    attention = counted.pop(torch.ops.aten.bmm) - sum(rotary)
    assert sum(counted.values()) == length * record.flops_per_token
    # PyTorch counts all keys for every query, seen or not; so does this, to compare.
    assert attention == length * length * record.flops_per_key


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_weights_are_those_of_the_model(family: Family) -> None:
    module, record = captured(family)[0], record_of(family)
    assert record.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert (record.hidden, record.vocab_size, record.layers) == (32, 288, ("block_0", "block_0"))
    attention = record.blocks["block_0"].attention
    assert attention is not None and attention.head_dim == attention.value_dim == 8
    assert (attention.heads, record.kv_heads, record.kv_elements) == ((4, 2, 32) if family == "llama" else (4, 4, 64))


def test_what_operators_read() -> None:
    block = record_of("llama").blocks["block_0"]
    stream, cos, sin = 0, 1, 2
    assert block.inputs == (32, 8, 8)
    by_kind = [(one.kind, one.reads, one.in_columns, one.out_columns) for one in block.operators]
    assert by_kind[:3] == [("norm", (stream,), 32, 32), ("linear", (3,), 32, 32), ("view", (4,), 32, 32)]
    assert ("view", (5, cos, sin), 48, 32) in by_kind, "attention rotates what it reads"
    assert by_kind[-5:] == [
        ("linear", (16,), 32, 64),
        ("linear", (16,), 32, 64),
        ("elementwise", (17, 18), 128, 64),
        ("linear", (19,), 64, 32),
        ("elementwise", (15, 20), 64, 32),
    ]
    assert block.weights == 32 * (32 + 16 + 16 + 32) + 3 * 32 * 64 + 2 * 32


def test_experts() -> None:
    module = expert_model("mixtral")
    record = model_record(module.config)
    assert record.parameters == sum(parameter.numel() for parameter in module.parameters())
    (experts,) = (one for one in record.blocks["block_0"].operators if one.kind == "experts")
    assert (experts.experts, experts.top_k, experts.weights) == (5, 2, (5 * 48 * 32,) * 3)
    assert experts.flops_per_token == 2 * 2 * 3 * 48 * 32
    assert [one.name for one in experts.partitionings] == ["replicated", "inner:2", "inner:1", "inner:3"]


def test_a_tied_matrix_counts_once() -> None:
    config = GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=64, vocab_size=96)
    record = model_record(config, name="x")
    assert record.tied and record.name == "x" and record.max_positions == 64
    with torch.device("meta"):
        module = MODEL_FOR_CAUSAL_LM_MAPPING[GPT2Config](config)
    assert record.parameters == sum(parameter.numel() for parameter in module.parameters())


def test_a_config_says_what_the_whole_model_does() -> None:
    """Of six layers of two kinds, four are captured."""
    kinds = [int(place in (1, 2, 4)) for place in range(6)]
    config = Qwen2Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=[("sliding_attention", "full_attention")[kind] for kind in kinds],
    )
    record = model_record(config)
    assert record.layers == tuple(f"block_{kind}" for kind in kinds)
    assert [one.attention.window for one in record.blocks.values() if one.attention is not None] == [8, None]
    with torch.device("meta"):
        module = MODEL_FOR_CAUSAL_LM_MAPPING[Qwen2Config](config)
    assert record.parameters == sum(parameter.numel() for parameter in module.parameters())
    _, sample = hollow_model(config, "x")
    assert sample == [0, 1, 1, 0, 1, 0]


def test_the_fingerprint_is_that_of_the_model_s_graph() -> None:
    module, graph = captured("llama")
    run_passes(graph, FLAT)
    assert model_record(module.config).fingerprint == fingerprint(find_blocks(graph))


def test_a_module_without_a_config() -> None:
    head = Head()
    record = model_record(head, name="head", feature_size=12)
    used = sum(parameter.numel() for name, parameter in head.named_parameters() if not name.startswith("unused"))
    assert record.parameters == used and len(record.layers) == 1


def test_another_kind_of_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model t5 \(t5\) is not a decoder-only language model"):
        model_record(T5Config(), name="t5")
