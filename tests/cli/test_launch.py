"""A job of several ranks from the command line, and how it ends when a rank does."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from transformers.utils import logging as hf_logging

from flexspec.cli.exit_status import GENERATION_FAILED, INTERRUPTED, USAGE
from flexspec.cli.main import main
from flexspec.strategy import Strategy
from rank_launch import alone, divided
from tiny_models import tiny, tiny_tokenizer

TIMEOUT_S = 5
START_S = 180
"""On a busy machine."""
ENDLESS = ["--min-tokens", "100000", "--max-tokens", "100000"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that goes on until it is stopped."""
    made: Path = tmp_path_factory.mktemp("two_layers")
    hf_logging.disable_progress_bar()
    tiny("llama", max_position_embeddings=1 << 17).save_pretrained(made)
    hf_logging.enable_progress_bar()
    tiny_tokenizer().save_pretrained(made)
    return str(made)


def strategy_file(path: Path, **parallel: Any) -> str:
    Strategy(dtype="float32", max_batch=2, parallel=parallel).save(path)
    return str(path)


@contextmanager
def said_to(file: Path) -> Iterator[None]:
    """What this process and those that it starts say goes to a file."""
    kept = [os.dup(1), os.dup(2)]
    with file.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    try:
        yield
    finally:
        for place, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, place)
            os.close(descriptor)


def ranks_of(marker: str) -> dict[str, int]:
    """The processes that run as ranks of a job, by rank."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and marker in (process / "cmdline").read_text():
                environment = dict(one.partition("=")[::2] for one in (process / "environ").read_text().split("\0"))
                if "RANK" in environment:
                    found[environment["RANK"]] = int(process.name)
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.parametrize(
    ("number", "victim", "degrees", "words"),
    [
        pytest.param(signal.SIGKILL, "1", {"pp": 2}, "rank 1 was ended by signal SIGKILL", id="killed"),
        pytest.param(signal.SIGKILL, "0", {"tp": 2}, "rank 0 was ended by signal SIGKILL", id="driver killed", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "1", {"tp": 2}, "rank 1 has not answered for 5 s", id="stopped", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "0", {"dp": 2}, "rank 0 has not answered for 5 s", id="driver stopped", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_the_job(
    number: int, victim: str, degrees: dict[str, int], words: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = divided(folder, **degrees) if "tp" in degrees else {"micro_batches": 2, **degrees}
    file, log = strategy_file(tmp_path / "strategy.json", **plan), tmp_path / "log.txt"
    struck: list[float] = []

    def strike() -> None:
        until = monotonic() + START_S
        while monotonic() < until and not (log.exists() and log.stat().st_size > 100):
            sleep(0.05)
        struck.append(monotonic())
        os.kill(ranks_of(file)[victim], number)

    arguments = ["generate", folder, "--ssm", "none", "--strategy", file, "--prompt", "go on", *ENDLESS]
    thread = threading.Thread(target=strike)
    with alone(), said_to(log):
        thread.start()
        status = main([*arguments, "--rank-timeout", str(TIMEOUT_S)])
        ended = monotonic()
    thread.join()
    assert status == GENERATION_FAILED and ended - struck[0] < 30
    assert words in log.read_text() + capsys.readouterr().err
    assert not ranks_of(file)


@contextmanager
def launched(folder: str, file: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A job that goes on, in a process of its own."""
    arguments = ["generate", folder, "--ssm", "none", "--strategy", file, "--prompt", "go on", *ENDLESS]
    with alone(), log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "flexspec", *arguments], stdout=out, stderr=subprocess.STDOUT)
        until = monotonic() + START_S
        while monotonic() < until and log.stat().st_size <= 100:
            sleep(0.05)
        yield process


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks(folder: str, tmp_path: Path) -> None:
    file, log = strategy_file(tmp_path / "strategy.json", pp=2), tmp_path / "log.txt"
    with launched(folder, file, log) as process:
        process.send_signal(signal.SIGINT)
        status = process.wait(30)
    assert status == INTERRUPTED, log.read_text()[-3000:]
    assert "Traceback" not in log.read_text() and "death signal" not in log.read_text()
    assert not ranks_of(file)


@pytest.mark.slow
def test_ranks_do_not_outlive_their_launcher(folder: str, tmp_path: Path) -> None:
    file, log = strategy_file(tmp_path / "strategy.json", pp=2), tmp_path / "log.txt"
    with launched(folder, file, log) as process:
        process.kill()
        process.wait()
        until = monotonic() + 30
        while ranks_of(file) and monotonic() < until:
            sleep(0.05)
    assert not ranks_of(file)
    assert (
        "the launcher, which holds the ranks' store, is gone" in log.read_text() or "whoever started this rank is gone" in log.read_text()
    )


def test_commands_that_know_nothing_of_ranks_say_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["bench", "smollm2-135m"]) == USAGE
    assert "flexspec bench does not run as several ranks: only generate" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert main(["bench", "smollm2-135m"]) == USAGE
    assert "WORLD_SIZE='two' is not allowed" in capsys.readouterr().err


def test_a_single_rank_may_run_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["--version"]) == 0
    assert "flexspec" in capsys.readouterr().out


DAMAGED = {
    "no JSON": ("{", "is not JSON"),
    "nothing": ("", "is not JSON"),
    "a list": ("[]", "is not a strategy"),
    "no plan": ({"parallel": 7}, "parallel=7"),
    "no field": ({"parallel": {"sp": 2}}, "'sp'"),
    "zero": ({"parallel": {"tp": 0}}, "tp=0"),
    "text": ({"parallel": {"dp": "2"}}, "dp='2'"),
    "where": ({"parallel": {"placement": {"ngram": "moon"}}}, "'moon'"),
    "stages": ({"parallel": {"pp": 2, "stage_layers": [1]}}, "stage_layers=[1]"),
    "too many": ({"parallel": {"dp": 100_000}}, "for 100000 ranks, too many"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_strategy_that_is_damaged_or_too_large_starts_no_rank(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = DAMAGED[name]
    file = tmp_path / "strategy.json"
    file.write_text(content if isinstance(content, str) else json.dumps({"version": 2, "dtype": "float32", **content}))
    assert main(["generate", "nothing", "--prompt", "x", "--strategy", str(file)]) == USAGE
    assert words in capsys.readouterr().err


def test_a_rank_that_was_started_for_another_number_says_so(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    file = strategy_file(tmp_path / "strategy.json", pp=2)
    assert main(["generate", folder, "--prompt", "x", "--ssm", "none", "--strategy", file]) == USAGE
    said = capsys.readouterr().err
    assert "for 2 ranks (dp=1 x (pp=2 x tp=1)), and 3 were started" in said and "torchrun --nproc-per-node 2" in said
