"""llama.cpp as a peer, against a stand-in for the `llama_cpp` package."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flexspec.bench.llama_cpp import llama_cpp
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.models.loaded_model import describe
from tiny_models import TINY_VOCAB, tiny


class FakeLlama:
    made: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        FakeLlama.made = options
        assert Path(options["model_path"]).stat().st_size > 0
        self.calls: list[Any] = []

    def reset(self) -> None:
        self.calls.append("reset")

    def set_seed(self, seed: int) -> None:
        self.calls.append(seed)

    def generate(self, tokens: list[int], **options: Any) -> Iterator[int]:
        self.calls.append((tokens, options["temp"]))
        yield from range(100, 200)


@pytest.fixture
def task(tmp_path: Path) -> PeerTask:
    return PeerTask(
        loaded=describe("tiny", tiny("llama", eos_token_id=104), None, TINY_VOCAB),
        dtype=torch.bfloat16,
        settings=GenerationSettings(max_tokens=8),
        max_len=256,
        scratch=tmp_path,
    )


def test_not_installed(task: PeerTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(PeerUnavailable, match="pip install llama-cpp-python"):
        llama_cpp(task)


def test_same_tokens_threads_and_end(task: PeerTask, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("llama_cpp")
    package.Llama = FakeLlama  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    assert importlib.import_module("llama_cpp") is package
    system = llama_cpp(task)
    assert FakeLlama.made["n_threads"] == torch.get_num_threads()
    assert FakeLlama.made["n_ctx"] == 256
    measured = system.run([[5, 6, 7]], seed=9)
    assert system._model.calls == ["reset", 9, ([5, 6, 7], 0.0)]
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (5, 4, 5)  # 104 ends it
