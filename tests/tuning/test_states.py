"""Hidden states in a file: those of the compiled model, whatever was interrupted."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flexspec.errors import UsageError
from flexspec.tuning.states import StateFile
from toy_states import StatefulToy, state_after
from tuning_cases import text

TEXTS = [text(length, 1, seed=length) for length in (5, 16, 17, 40, 1)]


def toy() -> StatefulToy:
    return StatefulToy(vocab_size=288, seed=3, max_pass_tokens=16)


def filled(path: Path, texts: int = len(TEXTS)) -> tuple[StateFile, list[int]]:
    seen: list[int] = []
    states = StateFile(path, TEXTS[:texts], toy())
    states.fill(seen.append)
    return states, seen


def test_they_are_the_model_s_own(tmp_path: Path) -> None:
    states, seen = filled(tmp_path / "states.bin")
    for number, one in enumerate(TEXTS):
        expected = [state_after(one.tokens[: end + 1].tolist()) for end in range(len(one.tokens))]
        found = states.read(number)
        assert found.dtype is torch.bfloat16
        assert torch.equal(found, torch.tensor([(b, 7, a + b) for a, b in expected], dtype=torch.float32).bfloat16())
    assert seen == [0, 1, 2, 3, 4, 5]
    states.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 3, 5 * 6, 5 * 6 + 1, 21 * 6 - 1, 78 * 6, 79 * 6])
def test_only_what_is_missing_is_computed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "states.bin"
    filled(path)
    whole = path.read_bytes()
    marked = bytearray(whole[:size])
    if size >= 30:
        marked[0] ^= 1  # what is there is not looked at
    path.write_bytes(marked)
    states, seen = filled(path)
    done = int(np.searchsorted(np.cumsum([len(one.tokens) for one in TEXTS]) * 6, size, side="right"))
    assert seen == list(range(done, len(TEXTS) + 1))
    assert path.read_bytes() == bytes(marked[:1]) * bool(done) + whole[bool(done) :]
    assert len(states.read(3)) == 40


def test_texts_that_came_later_and_texts_that_are_gone(tmp_path: Path) -> None:
    filled(tmp_path / "a", texts=2)
    _, seen = filled(tmp_path / "a")
    filled(tmp_path / "b")
    assert seen == [2, 3, 4, 5] and (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    filled(tmp_path / "b", texts=3)
    assert (tmp_path / "b").stat().st_size == 38 * 6


def test_a_full_disk_is_found_out_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "states.bin", texts=2)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(
        UsageError, match=r"0\.00 GB are needed in .* for hidden states and 0\.00 GB are free: make room there, or give fewer"
    ):
        filled(tmp_path / "states.bin")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=58 * 6))
    assert filled(tmp_path / "states.bin")[1] == [2, 3, 4, 5]


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "states.bin"
    states = StateFile(path, TEXTS, toy())

    def progress(done: int) -> None:
        if done == 3:
            raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"states\.bin' can't be written \(No space left on device\): make room"):
        states.fill(progress)
    assert filled(path)[1] == [3, 4, 5]
