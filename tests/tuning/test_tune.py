"""Whole tunings: what is in the folder at the end, and that an interruption at any point changes none of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexspec
from flexspec.bench.prompt_text import PromptText
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.ir.submodule_outputs import recorded_outputs
from flexspec.models.draft_folder import load_draft
from flexspec.models.load import load_model
from flexspec.tuning import tune as tuning
from flexspec.tuning.config import DraftModelSettings, TuneConfig
from flexspec.tuning.corpus import Corpus, Text
from flexspec.tuning.draft_models import state_names
from flexspec.tuning.progress import Bar
from flexspec.tuning.report import TuneReport
from flexspec.tuning.states import StateFile
from tiny_models import Family, tiny, tiny_tokenizer
from tuning_cases import compiled, config, loaded, prompts, run, text, tiny_llm

SETTINGS: dict[str, Any] = {"kind": "head", "pool": 2, "answer_tokens": 8, "passes": 2, "batch_tokens": 160}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneReport]:
    folder = tmp_path_factory.mktemp("unbroken") / "out"
    with tiny_llm():
        return folder, run(config(**SETTINGS), folder)


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder but the checkpoints."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".checkpoint"
    }


def test_what_is_there_at_the_end(unbroken: tuple[Path, TuneReport]) -> None:
    folder, report = unbroken
    members = [f"draft-{number}/{name}" for number in (1, 2) for name in ("drafter.json", "weights.safetensors")]
    assert list(files(folder)) == ["corpus/00000.safetensors", *members, "report.json", "settings.json"]
    answers = [int(text.is_answer.sum()) for text in Corpus(folder / "corpus")]
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert content == report.to_json()
    assert content["settings"] == config(**SETTINGS).to_json()
    assert (content["texts"], content["held_out"], content["answer_tokens"]) == (80, 2, sum(answers))
    assert content["draft_vocabulary"]["size"] == 40 and 0 < content["draft_vocabulary"]["share_of_held_out"] < 1
    for number, member in enumerate(content["members"], start=1):
        assert member["folder"] == f"draft-{number}" and member["parameters"] == content["members"][0]["parameters"]
        assert member["steps"] == member["curve"][-1]["step"] > 11 and member["tokens"] == 2 * (sum(answers) - answers[39] - answers[79])
        assert member["held_out"]["counts"][0] == answers[39] + answers[79] and len(member["held_out"]["hit_rates_by_depth"]) == 4
        assert member["curve"][-1]["by_depth"] == member["held_out"]["hit_rates_by_depth"]
    assert len(content["joint_coverage"]) == 2 and len(content["joint_coverage"][0]) == 8
    assert content["joint_coverage"][0] == content["members"][0]["held_out"]["hit_rates_by_depth"][0]
    first, second = (load_draft(folder / f"draft-{number}", loaded(), name="it") for number in (1, 2))
    assert first.token_ids is not None and second.token_ids is not None and torch.equal(first.token_ids, second.token_ids)
    assert not torch.equal(first.loaded.module.layer.q_proj.weight, second.loaded.module.layer.q_proj.weight)  # type: ignore[union-attr]


def interrupted(out: Path, name: str, when: int, *, resume: bool = True) -> None:
    """Run until the bar called `name` comes to `when`."""
    move = Bar.at

    def at(bar: Bar, completed: int, **options: Any) -> None:
        move(bar, completed, **options)
        if bar._description.startswith(name) and completed >= when:
            raise KeyboardInterrupt

    with tiny_llm() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Bar, "at", at)
        patch.setattr("flexspec.tuning.trainer._SAVE_EVERY_S", -1.0)
        run(config(**SETTINGS), out, resume=resume)


def test_interrupted_everywhere_it_ends_the_same(tmp_path: Path, unbroken: tuple[Path, TuneReport]) -> None:
    folder, expected = unbroken
    out = tmp_path / "out"
    interrupted(out, "writing", 0, resume=False)
    interrupted(out, "hidden", 30)
    interrupted(out, "training draft-1", 12)
    interrupted(out, "rating draft-1", 40)
    interrupted(out, "training draft-2", 3)
    interrupted(out, "training draft-2", 13)
    interrupted(out, "rating draft-2", 1)
    with tiny_llm():
        assert run(config(**SETTINGS), out, resume=True).to_json() == expected.to_json()
        assert files(out) == files(folder)
        assert run(config(**SETTINGS), out, resume=True).to_json() == expected.to_json(), "a run that is done tells what came of it"


def test_the_states_are_those_of_the_model(tmp_path: Path) -> None:
    names = state_names(loaded().module, "head")
    texts = [text(40, 3), text(5, 2, seed=1)]
    states = StateFile(tmp_path / "states", texts, compiled(names).model)
    states.fill(lambda done: None)
    for number, one in enumerate(texts):
        with torch.no_grad(), recorded_outputs(loaded().module, names) as outputs:
            loaded().module(torch.from_numpy(one.tokens)[None])
        exact = torch.cat([outputs[name][0][0] for name in names], dim=-1)
        assert (states.read(number).float() - exact).norm() < 0.03 * exact.norm()


def test_what_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refused(message: str, wanted: TuneConfig | None = None, *, resume: bool = False, asked: Sequence[PromptText] | None = None) -> None:
        with pytest.raises(UsageError, match=message):
            run(wanted or config(), out, resume=resume, asked=asked)
        assert not out.exists() or list(out.iterdir()) == []

    empty = PromptText(id="1", category="none", text=" ", chat=True)
    with tiny_llm() as patch:
        refused("vocab-trim=300 is not allowed: the vocabulary has 288 tokens", config(vocab_trim=300))
        refused("layers=4 is not allowed", TuneConfig(model="tiny", draft_model=DraftModelSettings(kind="ssm", layers=4)))
        refused(r"79 usable prompts are too few .*: give at least 80 with text", asked=prompts(79))
        refused("none of the 1 prompts can be used: 1 have no text", asked=[empty])
        refused(r"answers of 600 tokens do not fit: model .* has 512 positions", config(answer_tokens=600))
        patch.setattr(tuning, "available_memory", lambda: 10**6)
        refused(r"GB are needed for the KV cache of 64 texts at once, and 0\.00 GB are available: free some memory")


def test_texts_of_another_model_in_the_folder(tmp_path: Path) -> None:
    foreign = Text(tokens=np.array([3, 288]), is_answer=np.array([False, True]))
    Corpus(tmp_path / "corpus").add_round([text(9, 3), *[foreign] * 255])
    with (
        tiny_llm(),
        pytest.raises(UsageError, match=r"corpus' holds texts of a model with more tokens than LlamaForCausalLM"),
    ):
        run(config(**SETTINGS), tmp_path)


def test_a_teacher_that_is_too_large_is_not_even_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    monkeypatch.setattr(tuning, "available_memory", lambda: 1000)
    with pytest.raises(UsageError, match=r"GB are needed \(weights of model .*\) and 0\.00 GB are available"):
        run(TuneConfig(model=str(tmp_path)), tmp_path / "out")


KILLED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tuning_cases import config, run, tiny_llm
with tiny_llm() as patch:
    patch.setattr("flexspec.tuning.trainer._SAVE_EVERY_S", -1.0)
    run(config(**{settings!r}), Path(sys.argv[1]), resume=sys.argv[2] == "resume")
"""


@pytest.mark.slow
def test_killed_at_any_time_it_ends_the_same(tmp_path: Path, unbroken: tuple[Path, TuneReport]) -> None:
    folder, expected = unbroken
    out = tmp_path / "out"
    source = KILLED.format(settings=SETTINGS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    kills = 0
    for wait_s in (0.0, 0.3, 0.6, 1.0, 100.0):
        begun = (out / "settings.json").exists()
        process = subprocess.Popen([sys.executable, "-c", source, str(out), "resume" if begun else "new"], env=environment)
        while process.poll() is None and not (out / "settings.json").exists():
            time.sleep(0.01)
        try:
            process.wait(wait_s + (4.0 if begun else 0.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0
            break
    assert kills and files(out) == files(folder) and json.loads((out / "report.json").read_text()) == expected.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "ssm"])
@pytest.mark.parametrize("family", ["gpt2", "opt", "qwen3", "mistral"])
def test_llms_of_other_forms(tmp_path: Path, family: Family, kind: str) -> None:
    """Some have neither rotary positions nor a gate, biases, learned positions, tied weights."""
    module = tiny(family, layers=3, tie_word_embeddings=family == "opt")
    llm = load_model(module, tokenizer=tiny_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "load_model", lambda name: llm)
        run(config(kind, answer_tokens=12), tmp_path / "out")
    params = [SamplingParams(max_tokens=30, temperature=temperature, seed=1) for temperature in (0.0, 0.9)]
    text = prompts(2)
    compiled_llms = [
        flexspec.compile(module, drafters, tokenizer=tiny_tokenizer(), max_len=128, **options)
        for drafters, options in (([], {}), ([str(tmp_path / "out" / "draft")], {"tree": [3, 1]}))
    ]
    plain, drafted = ([one.generate(asked.text, each)[0] for asked in text for each in params] for one in compiled_llms)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert all(output.stats.drafted > 0 for output in drafted)
