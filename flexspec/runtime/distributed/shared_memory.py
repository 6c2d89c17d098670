"""Memory that ranks of one machine share, and words in it that they wait for.

Messages through the system take several times as long between ranks that compute for milliseconds in between: whoever waits sleeps, and
so do the threads that move messages, until the system wakes them.
"""

import fcntl
import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import finalize

import torch

from flexspec.codegen.cpu.native import NativeLibrary
from flexspec.runtime.distributed.rank_failure import RankFailure

_FOLDER = Path("/dev/shm")
_AWAKE_NS = 20_000_000
_LOOK_NS = 50_000_000
"""After which a rank looks whether the one it waits for is still there."""
_SLEEP_SHARE = 0.05
_SHORTEST_SLEEP_NS, _LONGEST_SLEEP_NS = 50_000, 1_000_000
_YES, _NO = "yes", "no"


class SharedMemory:
    """Memory that a number of ranks see.

    A rank holds a lock on its own byte of the file until it gives the memory up, or its process ends, however it ends: that is how the
    others see that it is there.

    Args:
        file: of the memory; closed when it is given up.
        num_bytes: of it.
        ranks: whose it is.
        rank: this one.
        library: has the functions that wait.

    Attributes:
        memory: all of it, uint8.
    """

    def __init__(self, file: int, num_bytes: int, *, ranks: Sequence[int], rank: int, library: NativeLibrary) -> None:
        self._file = file
        self._ranks = tuple(ranks)
        self._rank = rank
        self._library = library
        finalize(self, os.close, file).atexit = False  # until the process ends, so that others see it to its end
        self.memory = torch.frombuffer(mmap(file, num_bytes), dtype=torch.uint8)
        self._start = self.memory.data_ptr()

    def publish(self, byte: int, value: int) -> None:
        """See `SharedRegion.publish`."""
        self._library.publish(self._start + byte, value)

    def wait(self, byte: int, least: int, *, owner: int, limit_s: float | None = None) -> None:
        """See `SharedRegion.wait`.

        Args:
            byte: where the word begins.
            least: the value that it has to reach.
            owner: who writes it, by the place in `ranks`.
            limit_s: seconds after which the owner is given up; None to wait as long as it lives.

        Raises:
            RankFailure: if the owner is gone, or takes too long.
        """
        word = self._start + byte
        if self._library.wait(word, least, _AWAKE_NS, _SHORTEST_SLEEP_NS, _LOOK_NS):
            return
        began = monotonic()
        while True:
            gone = self._is_gone(owner)
            passed = monotonic() - began
            sleep = min(max(int(_SLEEP_SHARE * 1e9 * passed), _SHORTEST_SLEEP_NS), _LONGEST_SLEEP_NS)
            if self._library.wait(word, least, 0, sleep, 0 if gone else _LOOK_NS):
                return
            if gone:
                raise RankFailure(f"rank {self._ranks[owner]} is gone, as rank {self._rank} saw it")
            if limit_s is not None and passed > limit_s:
                raise RankFailure(f"rank {self._ranks[owner]} gave no answer for {limit_s:g} s, as rank {self._rank} saw it")

    def _is_gone(self, place: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
        return True


def share_memory(
    store: Any, name: str, num_bytes: int, *, ranks: Sequence[int], rank: int, library: NativeLibrary | None
) -> SharedMemory | None:
    """Memory for a number of ranks, all of which call this; None for all of them if one of them can't see what another one made.

    Args:
        store: the job's.
        name: another one for every such memory.
        num_bytes: of it; the memory is taken at once.
        ranks: who shares it; the first one makes it.
        rank: this one, one of them.
        library: None if this rank has none.
    """
    place = list(ranks).index(rank)
    memory, path = None, ""
    try:
        with suppress(OSError):
            if place == 0:
                file, path = _made(num_bytes)
                store.set(f"{name}/file", f"{os.fstat(file).st_ino} {path}")
            else:
                file = _opened(store.get(f"{name}/file").decode())
            if library is not None and _locked(file, place):
                memory = SharedMemory(file, num_bytes, ranks=ranks, rank=rank, library=library)
            else:
                os.close(file)
        if place == 0 and not path:
            store.set(f"{name}/file", "")
        store.set(f"{name}/{place}", _NO if memory is None else _YES)
        answers = [store.get(f"{name}/{other}").decode() for other in range(len(ranks))]
    finally:
        if path:
            os.unlink(path)  # nobody has to open it any more
    return memory if answers == [_YES] * len(ranks) else None


def machine_name() -> str:
    """What ranks of one machine have in common."""
    return socket.gethostname()


def _made(num_bytes: int) -> tuple[int, str]:
    """A file of memory, and its path."""
    if not _FOLDER.is_dir():
        raise FileNotFoundError(_FOLDER)  # a file on a disk, or of another system, may not be the same memory for all
    file, path = tempfile.mkstemp(prefix="flexspec-", dir=_FOLDER)
    try:
        os.posix_fallocate(file, 0, num_bytes)  # a system that has not got the memory says so now
    except BaseException:
        os.close(file)
        os.unlink(path)
        raise
    return file, path


def _opened(told: str) -> int:
    """The file that the first rank told of, if it is the same one here."""
    number, _, path = told.partition(" ")
    file = os.open(path, os.O_RDWR)
    if os.fstat(file).st_ino != int(number):
        os.close(file)
        raise FileNotFoundError(path)
    return file


def _locked(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError:
        return False
    return True
