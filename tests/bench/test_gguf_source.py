"""The GGUF file behind a model: found by what the user called the model, and only of the type that is asked for."""

from pathlib import Path

import pytest
import torch
from gguf import LlamaFileType

from flexspec.bench import gguf_source
from flexspec.bench.gguf_export import write_gguf
from flexspec.bench.gguf_source import source_gguf
from flexspec.bench.peer import PeerUnavailable
from flexspec.models.loaded_model import describe
from tiny_models import TINY_VOCAB, tiny


def test_only_a_file_of_the_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(describe("tiny", tiny("llama"), None, TINY_VOCAB), torch.float32, path)
    assert source_gguf(str(path), LlamaFileType.ALL_F32) == path
    with pytest.raises(PeerUnavailable, match=r"model\.gguf holds ALL_F32, not Q4_1"):
        source_gguf(str(path), LlamaFileType.MOSTLY_Q4_1)
    monkeypatch.setattr(gguf_source, "smollm2_gguf", lambda: path)
    assert source_gguf("smollm2-135m", LlamaFileType.ALL_F32) == path


def test_other_models_have_none(tmp_path: Path) -> None:
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"{}")
    for name in ("someone/some-model", str(tmp_path), str(other)):
        with pytest.raises(PeerUnavailable, match="does not come from a GGUF file"):
            source_gguf(name, LlamaFileType.MOSTLY_Q4_1)
