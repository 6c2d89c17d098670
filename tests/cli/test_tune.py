"""`flexspec tune`."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import CohereConfig, CohereForCausalLM

from flexspec.api.draft_models import load_if_tuned
from flexspec.api.lower import Compilation, lower
from flexspec.cli.main import main
from flexspec.config import SamplingParams
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.tuning import tune as tuning
from flexspec.tuning.config import TuneConfig
from onnx_decoders import Form, decoder, saved
from tiny_models import tiny_tokenizer

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True, scope="module")
def _compiled_once() -> Iterator[None]:
    kept: dict[str, Compilation] = {}

    def lower_once(llm: LoadedModel, **options: Any) -> Compilation:
        return kept[llm.name] if llm.name in kept else kept.setdefault(llm.name, lower(llm, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "lower", lower_once)
        yield


@pytest.fixture
def tiny_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions, answers and rounds that take no time."""
    question = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=6)
    monkeypatch.setattr("flexspec.tuning.self_made._QUESTION", question)
    monkeypatch.setattr("flexspec.tuning.make_corpus.ROUND_SIZE", 90)
    monkeypatch.setitem(TuneConfig.__init__.__kwdefaults__, "answer_tokens", 6)


def refusal(capsys: Capture, arguments: Sequence[str]) -> str:
    capsys.readouterr()
    assert main(["tune", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("flexspec: ") and captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.usefixtures("tiny_texts")
def test_from_a_model_to_a_drafter(capsys: Capture, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    options = ["--out", str(out), "--self-made", "90", "--tokens", "900", "--vocab-trim", "100", "--passes", "1", "--seed", "3"]

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning._Tuning, "run", interrupted)
        assert main(["tune", model_folder, *options]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"writing texts, tokens: \d+/900\nstopped; the same command with --resume goes on\n", captured.err)
    assert "add --resume to go on with it" in refusal(capsys, [model_folder, *options])
    assert "holds a run with seed=3, not 4: give the same settings" in refusal(capsys, [model_folder, *options[:-1], "4", "--resume"])

    assert main(["tune", model_folder, *options, "--resume"]) == 0
    captured = capsys.readouterr()
    assert [line.split(":")[0] for line in captured.err.splitlines()] == [
        "writing texts, tokens",
        "hidden states of texts",
        f"training draft, steps loss {re.findall('loss (.*):', captured.err)[0]}",
        "rating draft on texts",
    ]
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert re.match(
        rf"{report['texts']} texts, {report['answer_tokens']} tokens of answers; 2 texts held out; drafts 100 tokens", captured.out
    )
    assert captured.out.endswith(f"\n--ssm {out / 'draft'}\n")
    assert (report["settings"]["training"]["seed"], report["settings"]["num_prompts"]) == (3, 90)

    draft = load_if_tuned(str(out / "draft"), load_model(model_folder))
    assert draft is not None and draft.token_ids is not None and len(draft.token_ids) == draft.loaded.vocab_size == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option '--out'"),
        (["--out", "OUT", "--kind", "tree"], "kind='tree' is not allowed: give one of head, ssm"),
        (["--out", "OUT", "--layers", "2"], "layers=2 is not allowed for a head"),
        (["--out", "OUT", "--kind", "ssm", "--layers", "0"], "layers=0 is not allowed"),
        (["--out", "OUT", "--vocab-trim", "1"], "vocab-trim=1 is not allowed"),
        (["--out", "OUT", "--pool", "0"], "pool=0 is not allowed"),
        (["--out", "OUT", "--tokens", "0"], "tokens=0 is not allowed"),
        (["--out", "OUT", "--passes", "0"], "passes=0 is not allowed"),
        (["--out", "OUT", "--minutes", "0"], "minutes=0.0 is not allowed"),
        (["--out", "OUT", "--seed", "-1"], "seed=-1 is not allowed"),
        (["--out", "OUT", "--self-made", "5"], "self-made=5 is not allowed: give at least 80"),
        (["--out", "OUT", "--data", "DATA", "--self-made", "90"], "give --data or --self-made, not both"),
        (["--out", "OUT", "--data", "OUT/missing.jsonl"], "missing.jsonl' can't be read"),
        (["--out", "OUT", "--data", "DATA"], "prompts.jsonl', line 3: not JSON"),
        (["--out", "OUT", "--resume"], "holds no run to go on with"),
        (["--out", "DATA"], "can't be written (File exists): give another folder"),
        (["--out", "DATA/below"], "can't be written (Not a directory): give another folder"),
    ],
)
def test_bad_options(capsys: Capture, model_folder: str, tmp_path: Path, options: list[str], message: str) -> None:
    data, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    data.write_text('{"prompt": "the"}\n\n{"prompt": "th\n', encoding="utf-8")
    given = [option.replace("OUT", str(out)).replace("DATA", str(data)) for option in options]
    assert message in refusal(capsys, [model_folder, *given])
    assert not out.exists()


def test_models_that_can_t_be_tuned_to(capsys: Capture, model_folder: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert "vocab-trim=289 is not allowed: the vocabulary has 288" in refusal(capsys, [model_folder, *out, "--vocab-trim", "289"])
    assert "LlamaForCausalLM has one layer, too few for an SSM of some" in refusal(capsys, [model_folder, *out, "--kind", "ssm"])
    assert "model './missing' does not exist" in refusal(capsys, ["./missing", *out])
    graph = str(saved(decoder(Form()), tmp_path))
    assert f"tuned to models of transformers, and {graph} is none: give one" in refusal(capsys, [graph, *out])
    sizes = {"vocab_size": 288, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    CohereForCausalLM(CohereConfig(**sizes, **tokens, logit_scale=0.25)).save_pretrained(tmp_path / "cohere")
    tiny_tokenizer().save_pretrained(tmp_path / "cohere")
    assert "CohereForCausalLM does more to its logits than its output matrix does" in refusal(capsys, [str(tmp_path / "cohere"), *out])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_without_a_chat_template(capsys: Capture, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexspec.tuning.self_made.chat_frame", lambda tokenizer: None)
    assert "the model has no chat template" in refusal(capsys, [model_folder, "--out", str(tmp_path / "out")])
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": " "}\n' * 3, encoding="utf-8")
    refused = refusal(capsys, [model_folder, "--out", str(tmp_path / "out"), "--data", str(data)])
    assert "none of the 3 prompts can be used: 3 have no text, 0 are longer than" in refused
