"""`flexspec generate --logprobs` and `--prompt-logprobs`, and texts that can't go on."""

import json
import math
from pathlib import Path

import pytest
import torch

import flexspec
from flexspec.cli.logprobs_json import logprobs_json
from flexspec.cli.main import main
from flexspec.codegen.cpu.native_model import NativeModel
from flexspec.codegen.cpu.torch_model import TorchModel
from flexspec.runtime.logprobs import TokenLogprobs


def test_they_are_written_as_json(model_folder: str, plain_llm: flexspec.LLM, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    options = ["--max-tokens", "9", "--dtype", "float32", "--max-len", "512", "--json", str(report)]
    asked = ["--logprobs", "2", "--prompt-logprobs", "0"]
    assert main(["generate", model_folder, "--prompt", "one two", "--ssm", "ngram", *options, *asked]) == 0
    (output,) = json.loads(report.read_text(encoding="utf-8"))["outputs"]
    params = flexspec.SamplingParams(max_tokens=9, logprobs=2, prompt_logprobs=0)
    (expected,) = plain_llm.generate("one two", params)
    assert expected.logprobs is not None and expected.prompt_logprobs is not None
    assert [entry["token_id"] for entry in output["logprobs"]] == output["token_ids"] == expected.token_ids
    for entry, other in zip(output["logprobs"], expected.logprobs, strict=True):
        assert entry["logprob"] == pytest.approx(other.logprob, abs=1e-3)
        assert [token for token, _ in entry["top"]] == list(other.top)
    assert output["prompt_logprobs"][0] is None and output["prompt_logprobs"][1]["top"] == []
    assert len(output["prompt_logprobs"]) == len(expected.prompt_token_ids)
    assert output["error"] is None


def test_what_is_impossible_is_null() -> None:
    assert logprobs_json([None, TokenLogprobs(token_id=3, logprob=-math.inf, top={1: -0.5})]) == [
        None,
        {"token_id": 3, "logprob": None, "top": [(1, -0.5)]},
    ]


def test_without_a_file_they_are_refused(capsys: pytest.CaptureFixture[str], model_folder: str) -> None:
    assert main(["generate", model_folder, "--prompt", "one", "--logprobs", "2"]) == 2
    assert "--json FILE" in capsys.readouterr().err


def test_a_text_that_could_not_go_on_is_a_failure(
    capsys: pytest.CaptureFixture[str], model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in (NativeModel, TorchModel):
        monkeypatch.setattr(target, "forward", lambda self, batch, kv: torch.full((len(batch.output_rows), self.vocab_size), torch.nan))
    assert main(["generate", model_folder, "--prompt", "one", "--dtype", "float32", "--max-len", "512"]) == 1
    assert "1 of 1 texts could not go on: the largest of" in capsys.readouterr().err
