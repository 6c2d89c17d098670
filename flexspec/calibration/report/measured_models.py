"""The models that are measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flexspec.models.load import load_outline
from flexspec.models.smollm2 import NAME as SMOLLM2
from flexspec.passes.search.records import ModelRecord, model_record

DTYPE = "bfloat16"
_WIDE = "wide"


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model to run.

    Attributes:
        title: in words.
        source: what it is loaded from.
    """

    title: str
    source: str

    def record(self) -> ModelRecord:
        """What the search knows of it."""
        return model_record(load_outline(self.source), name=self.title)


def measured_models(folder: Path, *, is_quick: bool) -> list[MeasuredModel]:
    """SmolLM2-135M, and a model with few wide layers whose weights are random and are written to a folder."""
    wide = folder / _WIDE
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=256 if is_quick else 2048,
        intermediate_size=704 if is_quick else 5632,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: Any = LlamaForCausalLM(config)
        module.to(torch.bfloat16).save_pretrained(wide)
    title = f"4 layers, hidden {config.hidden_size}, random weights"
    return [MeasuredModel(title="SmolLM2-135M", source=SMOLLM2), MeasuredModel(title=title, source=str(wide))]
