"""Copies that share weights: tied weights, rotary buffers, and independence of everything else."""

import pytest
import torch

from flexspec.models.shared_copy import shared_copy
from tiny_models import tiny


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_tied_weights_stay_tied(dtype: torch.dtype | None) -> None:
    model = tiny("llama", tie_word_embeddings=True)
    copied = shared_copy(model, dtype)
    assert copied.lm_head.weight is copied.model.embed_tokens.weight
    assert (copied.lm_head.weight is model.lm_head.weight) == (dtype is None)


def test_rotary_frequencies_keep_their_precision() -> None:
    model = tiny("llama")
    copied = shared_copy(model, torch.bfloat16)
    assert copied.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(copied.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


def test_the_copy_has_its_own_config_and_structure() -> None:
    model = tiny("gpt2")
    copied = shared_copy(model)
    copied.config.eos_token_id = 5
    copied.transformer.h[0] = torch.nn.Identity()
    assert model.config.eos_token_id is None
    assert not isinstance(model.transformer.h[0], torch.nn.Identity)
