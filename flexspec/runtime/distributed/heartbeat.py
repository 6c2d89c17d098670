"""Notices ranks that hang: one that is stopped or stuck keeps its connections open, and whoever waits for it would wait for ever."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from flexspec.runtime.distributed.ranks import Ranks

_INTERVAL_S = 0.5
_FAILED = 1
_ENDED = b"ended"
_LAUNCHER = "the launcher"


class Heartbeat:
    """A thread that says that this rank lives, and ends the process when another one no longer does, or the launcher is gone.

    Args:
        ranks: the job.
        timeout_s: as below.
        end: called with what is wrong; it does not return.

    Attributes:
        timeout_s: seconds of silence after which a rank counts as hanging.
    """

    def __init__(self, ranks: Ranks, *, timeout_s: float, end: Callable[[str], Any] | None = None) -> None:
        self._store: Any = PrefixStore("heartbeat", ranks.store.clone())
        self._rank, self._size = ranks.rank, ranks.size
        self.timeout_s = timeout_s
        self._end = end or _end
        self._arrival_s = ranks.timeout_s
        self._parent = os.getppid()
        self._stopped = threading.Event()
        self._processes: dict[str, tuple[str, int]] = {}
        self._answered = monotonic()
        self._store.set(f"process/{self._rank}", f"{socket.gethostname()} {os.getpid()}")
        self._store.set(str(self._rank), "0")
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """This rank ends as it should; the others are told, and no longer watched."""
        self._stopped.set()
        self._thread.join(self.timeout_s)  # a store that is silent holds it up

    def _watch(self) -> None:
        others = [str(rank) for rank in range(self._size) if rank != self._rank]
        try:
            self._store.wait([str(rank) for rank in range(self._size)], timedelta(seconds=self._arrival_s))
        except RuntimeError:
            missing = [name for name in others if not self._store.check([name])]
            self._end(f"rank {', '.join(missing)} did not come within {self._arrival_s:g} s: start all {self._size}")
            return
        for name in others:
            host, process = self._store.get(f"process/{name}").decode().rsplit(" ", 1)
            self._processes[name] = host, int(process)
        self._answered = monotonic()
        threading.Thread(target=self._guard, name="heartbeat guard", daemon=True).start()
        seen = {name: (b"", monotonic()) for name in others}
        beats, now = 0, monotonic()
        while not self._stopped.wait(_INTERVAL_S):
            beats += 1
            if os.getppid() != self._parent:
                self._end("whoever started this rank is gone")
            try:
                self._store.set(str(self._rank), str(beats))
                found = self._store.multi_get(others) if others else []
            except RuntimeError:
                self._end(f"{_holder()}, which holds the ranks' store, is gone")
                return
            self._answered = monotonic()
            now, before = monotonic(), now
            if now - before > self.timeout_s / 2:
                # This rank was stopped itself, perhaps together with the others, when the machine slept: they begin anew.
                seen = {name: (value, now) for name, (value, _) in seen.items()}
            for name, value in zip(others, found, strict=True):
                if value != seen[name][0]:
                    seen[name] = value, now
                elif value != _ENDED and now - seen[name][1] > self.timeout_s:
                    self._kill(name)
                    self._end(f"rank {name} {self._silence()}")
        self._store.set(str(self._rank), _ENDED.decode())

    def _guard(self) -> None:
        """End the process if the store is silent, which whoever reads it would wait for."""
        now = monotonic()
        while not self._stopped.wait(_INTERVAL_S):
            now, before = monotonic(), now
            if now - before > self.timeout_s / 2:
                self._answered = now  # this rank was stopped itself
            elif now - self._answered > self.timeout_s:
                holder = _holder()
                if holder != _LAUNCHER:
                    self._kill("0")
                self._end(f"{holder}, which holds the ranks' store, {self._silence()}")
                return

    def _silence(self) -> str:
        return f"has not answered for {self.timeout_s:g} s (a larger --rank-timeout, in Python rank_timeout_s, would wait longer)"

    def _kill(self, name: str) -> None:
        """End a hanging rank on this machine: a stopped process does not hear its launcher ask it to end."""
        host, process = self._processes.get(name, ("", 0))
        if host == socket.gethostname():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _holder() -> str:
    """Who holds the store that the ranks talk by."""
    return _LAUNCHER if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True) else "rank 0"


def _end(reason: str) -> None:
    """End the process at once: its main thread may be in a call that never returns."""
    print(f"flexspec: {reason}; the job ends", file=sys.stderr, flush=True)
    os._exit(_FAILED)
