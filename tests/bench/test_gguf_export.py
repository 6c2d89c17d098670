"""What is written for llama.cpp reads back as the same model."""

from pathlib import Path

import pytest
import torch

from flexspec.bench.gguf_export import write_gguf
from flexspec.bench.peer import PeerUnavailable
from flexspec.models.gguf_file import load_gguf
from flexspec.models.loaded_model import LoadedModel, describe
from tiny_models import TINY_VOCAB, Family, random_prompt, tiny


def loaded(family: Family, **overrides: object) -> LoadedModel:
    return describe("tiny", tiny(family, **overrides), None, TINY_VOCAB)


@pytest.fixture(autouse=True)
def _cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    model = loaded("llama", tie_word_embeddings=tied)
    path = tmp_path / "model.gguf"
    write_gguf(model, dtype, path)
    back, _ = load_gguf(path, torch.float32)
    expected = model.module
    with torch.no_grad():
        for parameter in expected.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.to(dtype))
        ids = torch.tensor([random_prompt(20)])
        assert torch.equal(back(ids).logits, expected(ids).logits)


def test_other_architectures_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="only LLaMA"):
        write_gguf(loaded("qwen3"), torch.float32, tmp_path / "model.gguf")


def test_biases_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="bias"):
        write_gguf(loaded("llama", attention_bias=True), torch.float32, tmp_path / "model.gguf")
