"""OpenVINO as a peer: against a stand-in for its packages, and against the packages where they are installed."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flexspec.bench import openvino as peer
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.openvino import openvino
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.models.loaded_model import describe
from flexspec.tree_shape import PLAIN
from tiny_models import TINY_VOCAB, greedy_reference, random_prompt, tiny


class FakePipeline:
    """Streams 100, 101, … as single tokens and as lists."""

    def __init__(self, folder: str, tokenizer: str, device: str, **options: Any) -> None:
        self.made = (folder, tokenizer, device, options)
        self.asked: list[Any] = []

    def generate(self, ids: np.ndarray, config: Any, streamer: Any) -> None:
        self.asked.append((ids.tolist(), config.rng_seed))
        for token in range(100, 100 + config.max_new_tokens):
            streamer.write(token if token % 2 else [token])
            if token in config.stop_token_ids and not config.ignore_eos:
                break
        streamer.end()


class FakeConfig(SimpleNamespace):
    def set_eos_token_id(self, token: int) -> None:
        self.eos_token_id = token


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def installed(*, capabilities: tuple[str, ...] = ("FP32", "BF16"), pipeline: Any = FakePipeline) -> None:
        core = SimpleNamespace(get_property=lambda device, name: list(capabilities))
        genai = SimpleNamespace(
            LLMPipeline=pipeline,
            Tokenizer=lambda folder: f"tokenizer of {folder}",
            SchedulerConfig=SimpleNamespace,
            GenerationConfig=FakeConfig,
            StreamerBase=type("StreamerBase", (), {}),
            StreamingStatus=SimpleNamespace(RUNNING=0),
        )
        monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=lambda: core, Tensor=lambda array: array))
        monkeypatch.setitem(sys.modules, "openvino_genai", genai)
        monkeypatch.setattr(peer, "write_openvino", lambda library, loaded, folder: None)

    return installed


def task(tmp_path: Path, *, eos: int | None = 104, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> PeerTask:
    return PeerTask(
        loaded=describe("tiny", tiny("llama", eos_token_id=eos), None, TINY_VOCAB),
        dtype=dtype,
        settings=GenerationSettings(**({"max_tokens": 8} | settings)),
        max_len=256,
        scratch=tmp_path,
    )


@pytest.mark.parametrize(("missing", "package"), [("openvino_genai", "openvino-genai"), ("openvino", "openvino")])
def test_not_installed(missing: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]) -> None:
    install()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PeerUnavailable, match=f"{missing} is not installed: pip install {package}"):
        openvino(task(tmp_path))


def test_same_tokens_precision_threads_and_end(tmp_path: Path, install: Callable[..., None]) -> None:
    install()
    system = openvino(task(tmp_path))
    folder, tokenizer, device, options = system._pipeline.made
    assert (folder, tokenizer, device) == (str(tmp_path / "openvino"), f"tokenizer of {folder}", "CPU")
    assert options["INFERENCE_PRECISION_HINT"] == options["KV_CACHE_PRECISION"] == "bf16"
    assert options["INFERENCE_NUM_THREADS"] == torch.get_num_threads()
    assert not options["scheduler_config"].enable_prefix_caching
    measured = system.run([[5, 6, 7]], seed=9)
    assert system._pipeline.asked == [([[5, 6, 7]], 9)]
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (5, 4, 5)  # 104 ends it
    assert (system.name, system.drafters, system.tree) == ("openvino", (), PLAIN)


def test_settings(tmp_path: Path, install: Callable[..., None]) -> None:
    install()
    sampling = openvino(task(tmp_path, eos=None, dtype=torch.float32, temperature=0.7, top_p=0.9))
    assert sampling._pipeline.made[3]["INFERENCE_PRECISION_HINT"] == "f32"
    assert (sampling._config.do_sample, sampling._config.temperature, sampling._config.top_p) == (True, 0.7, 0.9)
    assert sampling._config.ignore_eos and sampling.run([[5]], seed=0).new_tokens == 8
    greedy = openvino(task(tmp_path))
    assert (greedy._config.do_sample, greedy._config.eos_token_id, greedy._config.stop_token_ids) == (False, 104, {104})


def test_why_it_may_not_run(tmp_path: Path, install: Callable[..., None]) -> None:
    install(capabilities=("FP32",))
    with pytest.raises(PeerUnavailable, match="no bfloat16 on this processor"):
        openvino(task(tmp_path))
    openvino(task(tmp_path, dtype=torch.float32))

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("Exception from core.cpp\nunsupported operation\n\n")

    install(pipeline=failing)
    with pytest.raises(PeerUnavailable, match="can't load the model: unsupported operation"):
        openvino(task(tmp_path))


@pytest.mark.slow
def test_the_real_one_says_what_hugging_face_says(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai")
    prompt = random_prompt(9)
    reference = greedy_reference(tiny("llama"), prompt, 24)
    eos = reference[-1]
    system = openvino(task(tmp_path, eos=eos, dtype=torch.float32, max_tokens=40))
    result = system._pipeline.generate(system._library.Tensor(np.array([prompt])), system._config)
    assert result.tokens[0] == reference[: reference.index(eos) + 1]
    assert system.run([prompt], seed=0).new_tokens == reference.index(eos) + 1
