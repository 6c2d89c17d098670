"""llama.cpp as a peer, against a stand-in for the `llama_cpp` package."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flexspec.bench import llama_cpp as peer
from flexspec.bench.llama_cpp import llama_cpp, llama_cpp_lookup, llama_cpp_q4_1
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.models.loaded_model import describe
from flexspec.tree_shape import PLAIN, TreeSpec
from tiny_models import TINY_VOCAB, tiny

TEXT = range(100, 200)


class FakeLlama:
    """Says `TEXT`; with a draft model it evaluates a token and its drafts in one pass, as the package does."""

    made: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        FakeLlama.made = options
        assert Path(options["model_path"]).stat().st_size > 0
        self.calls: list[Any] = []
        self.passes = 0

    def reset(self) -> None:
        self.calls.append("reset")

    def set_seed(self, seed: int) -> None:
        self.calls.append(seed)

    def generate(self, tokens: list[int], **options: Any) -> Iterator[int]:
        self.calls.append((tokens, options["temp"]))
        drafts: Sequence[int] = ()
        said = 0
        while said < len(TEXT):
            self.passes += 1
            for draft in (*drafts, None):
                yield TEXT[said]
                said += 1
                if draft != TEXT[said - 1]:
                    break
            if drafter := FakeLlama.made.get("draft_model"):
                drafts = drafter([*tokens, *TEXT[:said]])


class FakeLookup:
    """Drafts the next token and a wrong one, every third time nothing."""

    def __init__(self, *, num_pred_tokens: int) -> None:
        assert num_pred_tokens == 2
        self.calls = 0

    def __call__(self, input_ids: list[int], /) -> list[int]:
        self.calls += 1
        return [] if self.calls % 3 == 0 else [input_ids[-1] + 1, 0]


@pytest.fixture
def task(tmp_path: Path) -> PeerTask:
    return PeerTask(
        loaded=describe("tiny", tiny("llama", eos_token_id=104), None, TINY_VOCAB),
        dtype=torch.bfloat16,
        settings=GenerationSettings(max_tokens=8),
        max_len=256,
        scratch=tmp_path,
    )


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    package.Llama = FakeLlama  # type: ignore[attr-defined]
    speculative.LlamaPromptLookupDecoding = FakeLookup  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)


def test_not_installed(task: PeerTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    for make in (llama_cpp, llama_cpp_q4_1, llama_cpp_lookup):
        with pytest.raises(PeerUnavailable, match="llama_cpp is not installed: pip install llama-cpp-python"):
            make(task)


@pytest.mark.usefixtures("package")
def test_same_tokens_threads_and_end(task: PeerTask) -> None:
    system = llama_cpp(task)
    assert FakeLlama.made["n_threads"] == torch.get_num_threads()
    assert FakeLlama.made["n_ctx"] == 256
    measured = system.run([[5, 6, 7]], seed=9)
    assert system._model.calls == ["reset", 9, ([5, 6, 7], 0.0)]
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (5, 4, 5)  # 104 ends it
    assert (system.name, system.drafters, system.tree) == ("llama.cpp", (), PLAIN)


@pytest.mark.usefixtures("package")
def test_passes_of_lookup_are_counted_not_tokens(task: PeerTask) -> None:
    system = llama_cpp_lookup(task)
    assert FakeLlama.made["logits_all"]
    measured = system.run([[5, 6, 7]], seed=9)
    # Passes: 100 | 101 102 | 103 104, where accepted 103 came with the bonus token 104, which ends it.
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (5, 4, 3)
    assert measured.steps == system._model.passes
    # The drafter goes on counting: the next text's first pass is one of its own all the same. Here nothing is drafted before 101.
    measured = system.run([[5, 6, 7]], seed=9)
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (5, 4, 4)
    assert (system.name, system.drafters, system.tree) == ("llama.cpp-lookup", ("prompt-lookup",), TreeSpec(widths=(1, 1)))


@pytest.mark.usefixtures("package")
def test_the_quantised_file_is_used_as_it_is(task: PeerTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerUnavailable, match="model tiny does not come from a GGUF file"):
        llama_cpp_q4_1(task)
    shipped = tmp_path / "shipped.gguf"
    shipped.write_bytes(b"GGUF")
    monkeypatch.setattr(peer, "source_gguf", lambda name, kind: shipped)
    system = llama_cpp_q4_1(task)
    assert FakeLlama.made["model_path"] == str(shipped)
    assert (system.name, system.run([[5]], seed=0).new_tokens) == ("llama.cpp-q4_1", 5)


@pytest.mark.usefixtures("package")
def test_a_model_that_llama_cpp_refuses(task: PeerTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(**options: Any) -> None:
        raise ValueError("Failed to load model")

    monkeypatch.setattr(sys.modules["llama_cpp"], "Llama", refusing)
    with pytest.raises(PeerUnavailable, match=r"llama\.cpp can't load the model: Failed to load model"):
        llama_cpp(task)
