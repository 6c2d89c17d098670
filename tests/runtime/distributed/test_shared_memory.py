"""Memory between ranks: how they come to it, and what becomes of one that is gone."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
import torch.distributed as dist

from flexspec.codegen.cpu.native import NativeLibrary, load_library
from flexspec.runtime.distributed import shared_memory
from flexspec.runtime.distributed.rank_failure import RankFailure
from flexspec.runtime.distributed.shared_memory import SharedMemory, share_memory

_HOLD = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_rank_that_is_gone_and_one_that_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    memory = SharedMemory(file, 4096, ranks=[4, 7], rank=4, library=load_library())
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        with pytest.raises(RankFailure, match=r"rank 7 gave no answer for 0\.1 s, as rank 4 saw it"):
            memory.wait(64, 1, owner=1, limit_s=0.1)
        other.kill()
        began = monotonic()
        with pytest.raises(RankFailure, match="rank 7 is gone, as rank 4 saw it"):
            memory.wait(64, 1, owner=1)
        assert monotonic() - began < 10
    memory.publish(64, 3)
    memory.wait(64, 3, owner=1)  # what it wrote before it went counts


def shared(folder: Path, name: str, libraries: list[NativeLibrary | None], num_bytes: int = 8192) -> list[SharedMemory | None]:
    store = dist.FileStore(str(folder / "store"), len(libraries))
    ranks = list(range(len(libraries)))
    with ThreadPoolExecutor(len(libraries)) as pool:
        return list(
            pool.map(lambda rank: share_memory(store.clone(), name, num_bytes, ranks=ranks, rank=rank, library=libraries[rank]), ranks)
        )


def test_ranks_see_the_same_memory_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "shared").mkdir()
    monkeypatch.setattr(shared_memory, "_FOLDER", folder)
    first, second, third = shared(tmp_path, "all", [load_library()] * 3)
    assert first is not None and second is not None and third is not None
    first.memory[100] = 9
    second.publish(64, 5)
    third.wait(64, 5, owner=1)
    assert int(third.memory[100]) == 9
    assert list(folder.iterdir()) == []


def test_groups_of_other_names_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "shared").mkdir()
    monkeypatch.setattr(shared_memory, "_FOLDER", folder)
    one, other = shared(tmp_path, "one", [load_library()] * 2), shared(tmp_path, "other", [load_library()] * 2)
    assert one[0] is not None
    one[0].memory[100] = 1
    assert one[1] is not None and int(one[1].memory[100]) == 1
    assert other[1] is not None and int(other[1].memory[100]) == 0


def test_memory_that_is_given_up_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    memory = SharedMemory(file, 4096, ranks=[0, 1], rank=0, library=load_library())
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


@pytest.mark.parametrize("lacking", [0, 1])
def test_none_has_it_where_one_lacks_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: int) -> None:
    (folder := tmp_path / "shared").mkdir()
    monkeypatch.setattr(shared_memory, "_FOLDER", folder)
    libraries: list[NativeLibrary | None] = [load_library(), load_library()]
    libraries[lacking] = None
    assert shared(tmp_path, "some", libraries) == [None, None]
    assert list(folder.iterdir()) == []


def test_none_has_it_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "shared").mkdir()
    monkeypatch.setattr(shared_memory, "_FOLDER", folder)

    def full(file: int, start: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert shared(tmp_path, "large", [load_library()] * 2) == [None, None]
    assert list(folder.iterdir()) == []
