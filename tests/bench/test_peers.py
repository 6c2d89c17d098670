"""The registry of peers: who can be measured, who can't and why, and what they run on."""

import sys
from pathlib import Path

import pytest
import torch

from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peer import PeerTask, PeerUnavailable, import_peer, last_line
from flexspec.bench.peers import PEERS, make_peers, peer_packages
from flexspec.errors import UsageError
from flexspec.models.loaded_model import describe
from tiny_models import TINY_VOCAB, tiny


def test_what_is_not_installed_is_left_out_with_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama_cpp", "openvino_genai"):
        monkeypatch.setitem(sys.modules, name, None)
    task = PeerTask(
        loaded=describe("tiny", tiny("llama"), None, TINY_VOCAB),
        dtype=torch.float32,
        settings=GenerationSettings(max_tokens=4),
        max_len=64,
        scratch=tmp_path,
    )
    systems, left_out = make_peers(PEERS.names(), task)
    assert [system.name for system in systems] == ["hf", "hf-lookup"]
    missing = "llama_cpp is not installed: pip install llama-cpp-python"
    assert left_out == {
        "hf-assisted": "no drafter of this run is a model that runs by itself, as heads and look-ups do not: give one, "
        "for example --also prune:4",
        "llama.cpp": missing,
        "llama.cpp-q4_1": missing,
        "llama.cpp-lookup": missing,
        "openvino": "openvino_genai is not installed: pip install openvino-genai",
    }
    with pytest.raises(UsageError, match="peer='vllm' is unknown"):
        make_peers(["vllm"], task)


def test_modules_of_no_family_of_transformers_are_left_to_flexspec(tmp_path: Path) -> None:
    """An ONNX file's graph, or a module of a user's own."""
    task = PeerTask(
        loaded=describe("model.onnx", torch.nn.Linear(2, 2), None, TINY_VOCAB),
        dtype=torch.float32,
        settings=GenerationSettings(max_tokens=4),
        max_len=64,
        scratch=tmp_path,
    )
    systems, left_out = make_peers(["hf", "hf-lookup"], task)
    assert systems == []
    assert left_out == dict.fromkeys(
        ("hf", "hf-lookup"), "transformers can't run model.onnx: it is no model of a family that transformers knows"
    )


def test_an_installation_that_is_broken_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_peer.py").write_text("import a_library_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PeerUnavailable, match=r"broken_peer can't be imported \(No module named 'a_library.*\): pip install a-peer"):
        import_peer("broken_peer", "a-peer")


def test_packages_of_what_was_measured() -> None:
    assert peer_packages(["flexspec", "hf", "llama.cpp", "llama.cpp-lookup", "openvino"]) == [
        "transformers",
        "llama-cpp-python",
        "openvino-genai",
        "openvino",
    ]
    assert peer_packages([]) == []


def test_what_a_native_error_comes_down_to() -> None:
    assert last_line(RuntimeError("Exception from core.cpp:117:\nno such operation\n\n")) == "no such operation"
    assert last_line(RuntimeError("")) == "RuntimeError"
