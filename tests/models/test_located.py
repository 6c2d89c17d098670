"""Names of models: files and folders here, or names on the hub."""

import shutil
from pathlib import Path

import pytest

from flexspec.models import load_model
from flexspec.models.load import load_outline
from flexspec.models.located import is_onnx, located
from flexspec.models.onnx_file import OnnxDecoder
from onnx_decoders import Form, decoder, saved


def test_where_names_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "folder").mkdir()
    assert located("folder") == Path("folder") and located("~/folder") == tmp_path / "folder"
    assert located("other") is None and located("owner/name-0.5") is None


def test_suffixes_are_read_in_both_cases(tmp_path: Path) -> None:
    path = tmp_path / "MODEL.ONNX"
    shutil.move(saved(decoder(Form()), tmp_path), path)
    assert is_onnx(path) and not is_onnx(tmp_path / "other.onnx")
    assert isinstance(load_model(path).module, OnnxDecoder) and isinstance(load_outline(path), OnnxDecoder)
