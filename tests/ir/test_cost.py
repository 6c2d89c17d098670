"""Costs of graphs against PyTorch's own counting on the Hugging Face model."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flexspec.ir.cost import count_operators, model_cost
from graph_cases import captured, prompt, served
from tiny_models import FAMILIES, Family, tiny

TOKENS = 6


def hugging_face_flops(family: Family) -> tuple[int, int]:
    """FLOPs of matrix products with weights, and of attention, for TOKENS tokens; attention as if nothing were masked."""
    module = tiny(family)
    module.set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(input_ids=prompt(TOKENS)[None], position_ids=torch.arange(TOKENS)[None], use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    attention = counts.pop(torch.ops.aten.bmm, 0)
    return sum(counts.values()), attention


@pytest.mark.parametrize("family", FAMILIES)
def test_flops(family: Family) -> None:
    linear, attention = hugging_face_flops(family)
    # The rotary table may be a matrix product too: head_dim / 2 terms a token, in some versions of transformers.
    rotary = {0, 2 * TOKENS * 4}
    cost = model_cost(served(family)[1])
    assert cost.linear_flops * TOKENS == linear
    assert attention - cost.attention_flops_per_key * TOKENS * TOKENS in rotary
    # Token i sees i + 1 keys: a causal pass costs (TOKENS + 1) / (2 * TOKENS) of the full square.
    causal = sum(cost.flops_per_token(seen) for seen in range(1, TOKENS + 1))
    assert causal == linear + cost.attention_flops_per_key * TOKENS * (TOKENS + 1) // 2


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters(family: Family) -> None:
    module = captured(family)[0]
    for model in (captured(family)[1], served(family)[1]):
        assert model_cost(model).parameters == sum(parameter.numel() for parameter in module.parameters())


def test_a_tied_weight_counts_once() -> None:
    tied, untied = (model_cost(served("llama", num_hidden_layers=1, tie_word_embeddings=tie)[1]) for tie in (True, False))
    assert untied.parameters - tied.parameters == 288 * 32
    assert untied.linear_flops == tied.linear_flops


def test_operators_of_blocks_count_once_a_call() -> None:
    two, three = (count_operators(served("llama", num_hidden_layers=layers)[1].module) for layers in (2, 3))
    assert two["flexspec.tree_attention.default"] == 2
    assert three["flexspec.tree_attention.default"] == 3
    assert three["flexspec.packed_linear.default"] - two["flexspec.packed_linear.default"] == 4
