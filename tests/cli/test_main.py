"""What users see of their mistakes: one line on stderr and exit status 2."""

import errno
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from flexspec.cli.main import main, run
from tiny_models import tiny


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """What `flexspec` says as it refuses `arguments`."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("flexspec: ") and captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense': give one of demo, generate, inspect, bench,"),
        (["--nonsense"], "No such option: --nonsense: see flexspec --help"),
        (["generate"], "Missing argument 'MODEL': see flexspec generate --help"),
        (["generate", "MODEL"], "give either --prompt TEXT or --prompts-file"),
        (["generate", "MODEL", "--prompt", "a", "--prompts-file", "b"], "give either --prompt TEXT or --prompts-file"),
        (["generate", "MODEL", "--prompt", "a", "--nonsense"], "--nonsense"),
        (["generate", "MODEL", "--prompt", "a", "--max-tokens", "many"], "--max-tokens many is not allowed: give a whole number"),
        (["generate", "MODEL", "--prompt", "a", "--temperature=hot"], "--temperature hot is not allowed: give a number"),
        (["acceptance", "MODEL", "--temperature", "1", "--temperature", "hot"], "--temperature hot is not allowed: give a number"),
        (["generate", "MODEL", "--prompt"], "Option '--prompt' requires an argument: see flexspec generate --help"),
        (["generate", "MODEL", "--prompt", "a", "--max-tokens", "0"], "max_tokens=0 is not allowed: give"),
        (["generate", "MODEL", "--prompt", "a", "--temperature", "-1"], "temperature=-1.0 is not allowed: give"),
        (["generate", "MODEL", "--prompt", "a", "--top-p", "0"], "top_p=0.0 is not allowed: give"),
        (["generate", "MODEL", "--prompt", "a", "--dtype", "int8"], "dtype='int8' is not allowed: give one of float32, bfloat16"),
        (
            ["generate", "MODEL", "--prompt", "a", "--dtype", "float16"],
            "dtype='float16' is not allowed on a CPU: give one of float32, bfloat16",
        ),
        (["generate", "MODEL", "--prompt", "a", "--device", "tpu"], "device='tpu' is not allowed: give one of cpu, cuda"),
        (["generate", "MODEL", "--prompt", "a", "--kv-cache-dtype", "int4"], "kv_cache_dtype='int4' is not allowed: give one of auto, fp8"),
        (["generate", "MODEL", "--prompt", "a", "--kv-cache-dtype", "fp8"], "kv_cache_dtype='fp8' is not allowed on a CPU: give 'auto'"),
        (["inspect", "MODEL", "--device", "tpu"], "device='tpu' is not allowed"),
        (["demo", "--device", "tpu"], "device='tpu' is not allowed"),
        (["generate", "MODEL", "--prompt", "a", "--verifier", "x"], "verifier='x' is unknown: give one of auto"),
        (["generate", "MODEL", "--prompt", "a", "--ssm", "ngram", "--tree", "2,y"], "tree='2,y'"),
        (["generate", "MODEL", "--prompt", "a", "--ssm", "ngram", "--tree", "2,x"], "tree='2,x'"),
        (["generate", "MODEL", "--prompt", "a", "--ssm", "ngram", "--tree", "1,,2"], "tree='1,,2'"),
        (["generate", "MODEL", "--prompt", "a", "--ssm", "none", "--ssm", "ngram"], "--ssm none"),
        (["generate", "MODEL", "--prompt", "a", "--strategy", "missing.json"], "strategy file 'missing.json' can't be read"),
        (["generate", "MODEL", "--prompt", "a", "--json", "missing/out.json"], "there is no folder 'missing'"),
        (["generate", "MODEL", "--prompts-file", "missing.jsonl"], "'missing.jsonl' can't be read"),
        (["generate", "./missing", "--prompt", "a"], "model './missing' does not exist: give"),
        (["inspect", "./missing"], "model './missing' does not exist: give"),
        (["inspect", "MODEL", "--dtype", "int8"], "dtype='int8' is not allowed"),
        (["inspect", "MODEL", "--json", "/"], "--json '/' can't be written"),
        (["demo", "--json", "missing/out.json"], "there is no folder 'missing'"),
        (["demo", "extra"], "unexpected extra argument(s) (extra): see flexspec demo --help"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in refusal(capsys, arguments)


@pytest.mark.parametrize("command", ["check", "bench", "acceptance"])
@pytest.mark.parametrize(
    ("options", "message"),
    [(["--device", "tpu"], "device='tpu' is not allowed"), (["--kv-cache-dtype", "fp8"], "kv_cache_dtype='fp8' is not allowed on a CPU")],
)
def test_every_command_that_compiles_takes_the_device_and_the_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, options: list[str], message: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n', encoding="utf-8")
    assert main([command, "MODEL", "--ssm", "ngram", "--prompts", str(path), *options]) == 2
    assert f"flexspec: {message}" in capsys.readouterr().err


def test_peers_are_not_measured_beside_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n', encoding="utf-8")
    assert "device='cuda' is not allowed with peers (hf)" in refusal(
        capsys, ["bench", "MODEL", "--prompts", str(path), "--against", "hf", "--device", "cuda"]
    )


def test_a_broken_line_of_a_prompts_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n{"prompt": "cut\n', encoding="utf-8")
    assert "line 2" in refusal(capsys, ["generate", "MODEL", "--prompts-file", str(path)])


def test_models_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no config.json" in refusal(capsys, ["generate", str(tmp_path), "--prompt", "a"])
    gguf = tmp_path / "cut.gguf"
    gguf.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert "cut.gguf" in refusal(capsys, ["generate", str(gguf), "--prompt", "a"])
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}), encoding="utf-8"
    )
    assert "is not a decoder-only language model: give" in refusal(capsys, ["generate", str(tmp_path), "--prompt", "a"])


def test_prompts_and_ssms_that_do_not_fit(capsys: pytest.CaptureFixture[str], model_folder: str, tmp_path: Path) -> None:
    short = ["--prompt", "hello " * 20, "--max-len", "16", "--dtype", "float32"]
    assert "at most 15" in refusal(capsys, ["generate", model_folder, *short])
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    tiny("llama", layers=1, vocab=300).save_pretrained(stranger)
    capsys.readouterr()
    refused = refusal(capsys, ["generate", model_folder, "--prompt", "a", "--ssm", str(stranger), "--dtype", "float32"])
    assert "tokenizer" in refused or "vocab" in refused


def test_help_and_simple_mistakes_do_not_wait_for_torch() -> None:
    program = "import sys, flexspec.cli.main as m; m.main([]); m.main(['generate', 'x', '--prompt', 'a', '--top-p', '2'])"
    shown = subprocess.run([sys.executable, "-c", f"{program}; print('torch' in sys.modules)"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("Usage: flexspec") and shown.stdout.endswith("False\n")
    assert "top_p=2.0 is not allowed" in shown.stderr


@pytest.mark.parametrize(
    ("number", "status", "message"),
    [(errno.EPIPE, 141, ""), (errno.ENOSPC, 2, "flexspec: No space left on device: make room, or send the output elsewhere\n")],
)
def test_output_that_nobody_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, status: int, message: str
) -> None:
    def lose(_: Sequence[str]) -> int:
        raise OSError(number, os.strerror(number))

    dropped: list[bool] = []
    monkeypatch.setattr("flexspec.cli.main.main", lose)
    monkeypatch.setattr("flexspec.cli.main._drop_output", lambda: dropped.append(True))
    monkeypatch.setattr(warnings, "formatwarning", None)  # `run` sets it
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == status and capsys.readouterr().err == message and dropped == [True]
    assert warnings.formatwarning("slow\nkernels", RuntimeWarning, "lower.py", 167, "code") == "flexspec: warning: slow kernels\n"


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("demo", "generate", "inspect", "bench", "check"))


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"flexspec \d+\.\d+\.\d+\n", capsys.readouterr().out)
