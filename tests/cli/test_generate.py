"""`flexspec generate`."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import flexspec
from flexspec.cli.main import main
from flexspec.cli.streaming import follow

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


def test_one_prompt_streams_and_is_written_as_json(capsys: Capture, model_folder: str, plain_llm: flexspec.LLM, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    options = ["--ssm", "ngram", "--tree", "2,1,1", "--max-tokens", "40", "--dtype", "float32", "--max-len", "512", "--json", str(report)]
    assert main(["generate", model_folder, "--prompt", "one two", *options]) == 0
    content = json.loads(report.read_text(encoding="utf-8"))
    assert content["model"] == model_folder
    (output,) = content["outputs"]
    captured = capsys.readouterr()
    assert captured.out == output["text"] + "\n"
    assert captured.err.count("\n") == 1 and "40 tokens, ended by length; " in captured.err
    assert (output["prompt"], output["finish_reason"], len(output["token_ids"])) == ("one two", "length", 40)
    stats = output["stats"]
    assert stats["new_tokens"] == 40 and 0 < stats["accepted"] < stats["drafted"]
    assert stats["tokens_per_step"] == 40 / stats["steps"] > 1
    plain = flexspec.compile(model_folder, ssms=[], dtype="float32", max_len=512).generate(
        "one two", flexspec.SamplingParams(max_tokens=40)
    )
    assert output["token_ids"] == plain[0].token_ids


def test_a_file_of_prompts_is_a_batch(capsys: Capture, model_folder: str, plain_llm: flexspec.LLM, tmp_path: Path) -> None:
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "hello"}\n{"id": "q", "category": "c", "turns": ["hello", "more"]}\n', encoding="utf-8")
    sampling = ["--temperature", "0.9", "--top-p", "0.9", "--top-k", "50", "--min-p", "0.01", "--seed", "5", "--max-tokens", "12"]
    options = ["--prompts-file", str(prompts), "--dtype", "float32", "--max-len", "512", "--json", str(report)]
    assert main(["generate", model_folder, *sampling, *options]) == 0
    outputs = json.loads(report.read_text(encoding="utf-8"))["outputs"]
    assert [output["id"] for output in outputs] == ["1", "q"]
    assert capsys.readouterr().out == "".join(f"[{output['id']}] {output['text']}\n" for output in outputs)

    params = flexspec.SamplingParams(temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, seed=5, max_tokens=12)
    expected = [*plain_llm.generate("hello", params), *plain_llm.chat([{"role": "user", "content": "hello"}], params)]
    assert [output["token_ids"] for output in outputs] == [output.token_ids for output in expected]


def test_every_sampling_option_reaches_the_request(capsys: Capture, model_folder: str, plain_llm: flexspec.LLM, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    sampling = ["--presence-penalty", "0.5", "--frequency-penalty", "0.25", "--repetition-penalty", "1.2", "--min-tokens", "5"]
    sampling += ["--logit-bias", "3=-100", "--logit-bias", "40=1.5", "--stop-token-id", "7", "--stop-token-id", "9"]
    options = ["--max-tokens", "12", "--ssm", "ngram", "--tree", "2,1", "--dtype", "float32", "--max-len", "512", "--json", str(report)]
    assert main(["generate", model_folder, "--prompt", "one two", *sampling, *options]) == 0
    (output,) = json.loads(report.read_text(encoding="utf-8"))["outputs"]
    params = flexspec.SamplingParams(
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.2,
        min_tokens=5,
        logit_bias={3: -100, 40: 1.5},
        stop_token_ids=[7, 9],
        max_tokens=12,
    )
    assert output["token_ids"] == plain_llm.generate("one two", params)[0].token_ids
    capsys.readouterr()


@pytest.mark.parametrize("from_file", [False, True])
def test_several_completions_are_told_apart(
    from_file: bool, capsys: Capture, model_folder: str, plain_llm: flexspec.LLM, tmp_path: Path
) -> None:
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "hello"}\n{"prompt": "one two"}\n', encoding="utf-8")
    given = ["--prompts-file", str(prompts)] if from_file else ["--prompt", "hello"]
    options = ["--n", "2", "--temperature", "0.9", "--seed", "5", "--max-tokens", "8", "--ssm", "none"]
    assert main(["generate", model_folder, *given, *options, "--dtype", "float32", "--max-len", "512", "--json", str(report)]) == 0
    outputs = json.loads(report.read_text(encoding="utf-8"))["outputs"]
    names = [(output["id"], output["completion"]) for output in outputs]
    assert names == [("1", 0), ("1", 1), ("2", 0), ("2", 1)][: len(outputs)] and len(outputs) == (4 if from_file else 2)
    assert capsys.readouterr().out == "".join(f"[{output['id']}/{output['completion']}] {output['text']}\n" for output in outputs)
    params = flexspec.SamplingParams(n=2, temperature=0.9, seed=5, max_tokens=8)
    expected = plain_llm.generate(["hello", "one two"], params)
    assert [output["token_ids"] for output in outputs] == [output.token_ids for output in expected][: len(outputs)]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--logit-bias", "3"], ["--logit-bias 3", "ID=BIAS"]),
        (["--logit-bias", "x=1"], ["--logit-bias x=1", "ID=BIAS"]),
        (["--logit-bias", "3=1000"], ["logit_bias", "1000"]),
        (["--presence-penalty", "3"], ["presence_penalty=3.0"]),
        (["--min-tokens", "200"], ["min_tokens=200", "max_tokens=128"]),
        (["--stop-token-id", "-1"], ["stop_token_ids", "-1"]),
        (["--n", "2"], ["n=2", "temperature"]),
        (["--n", "0"], ["n=0"]),
    ],
)
def test_sampling_options_that_are_out_of_range(options: list[str], parts: list[str], capsys: Capture, model_folder: str) -> None:
    assert main(["generate", model_folder, "--prompt", "hello", *options]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and all(part in message for part in parts), message


def test_an_interrupt_outside_a_step_keeps_what_was_produced(plain_llm: flexspec.LLM) -> None:
    seen: list[int] = []

    def interrupt(chunk: flexspec.Chunk) -> None:
        seen.extend(chunk.token_ids)
        if len(seen) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(flexspec.GenerationInterrupted) as caught:
        follow(plain_llm, "hello", flexspec.SamplingParams(max_tokens=50), interrupt)
    (output,) = caught.value.outputs
    assert (output.token_ids, output.finish_reason) == (seen, "abort")
    assert not plain_llm.engine.has_work


def test_ctrl_c_ends_with_what_was_produced(model_folder: str, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    command = [sys.executable, "-m", "flexspec", "generate", model_folder, "--prompt", "hello", "--max-tokens", "130000"]
    command += ["--dtype", "float32", "--json", str(report)]
    # In the background of a shell Ctrl-C is ignored, and programs inherit that.
    as_in_front = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, preexec_fn=as_in_front) as process:
        try:
            assert process.stdout is not None
            begun = process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert b"Traceback" not in err and b"abort" in err
    (output,) = json.loads(report.read_text(encoding="utf-8"))["outputs"]
    assert output["finish_reason"] == "abort" and 0 < len(output["token_ids"]) < 130_000
    assert (begun + rest).decode() == output["text"] + "\n"
