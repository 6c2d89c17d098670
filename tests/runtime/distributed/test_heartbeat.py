"""A rank that is silent is noticed; one that has ended, or a machine that slept, is none. Time passes only as the tests say."""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from time import monotonic, sleep
from typing import Any, cast

import pytest

from flexspec.runtime.distributed import heartbeat
from flexspec.runtime.distributed.heartbeat import Heartbeat
from flexspec.runtime.distributed.ranks import Ranks

LIMIT_S = 8.0
SILENT = "has not answered for 8 s (a larger --rank-timeout, in Python rank_timeout_s, would wait longer)"
WATCH, GUARD = "heartbeat", "heartbeat guard"
_PATIENCE_S = 30.0


class Store:
    """What all ranks read and write; while `goes_on` is not set, readings do not come back."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.goes_on = Event()
        self.goes_on.set()
        self.waited: timedelta | None = None

    def clone(self) -> "Store":
        return self

    def set(self, name: str, value: str) -> None:
        self.values[name] = value.encode()

    def get(self, name: str) -> bytes:
        return self.values[name]

    def wait(self, names: Sequence[str], limit: timedelta) -> None:
        if not self.check(names):
            self.waited = limit
            raise RuntimeError("timed out")

    def check(self, names: Sequence[str]) -> bool:
        return all(name in self.values for name in names)

    def multi_get(self, names: Sequence[str]) -> list[bytes]:
        found = [self.values.get(name, b"") for name in names]
        self.goes_on.wait(_PATIENCE_S)
        return found


class Job:
    rank, size, timeout_s = 0, 2, 600.0

    def __init__(self) -> None:
        self.store = Store()


@dataclass
class Clock:
    """Counts which thread has asked for the time how often."""

    now: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)

    def __call__(self) -> float:
        self.asked[threading.current_thread().name] += 1
        return self.now


@dataclass
class Watched:
    """A heartbeat that watches rank 1, which the test plays, and what it ended the job with."""

    store: Store
    clock: Clock
    said: list[str]
    ended: Event

    def pass_time(self, seconds: float, *, lives: bool, step: float = LIMIT_S / 8, seen_by: Sequence[str] = (WATCH, GUARD)) -> None:
        """Let time pass in steps which all threads see, with a beat of rank 1 before each if it lives; ends with the job."""
        for _ in range(round(seconds / step)):
            if lives:
                self.store.set("1", str(self.clock.now + 1))
            self.clock.now += step
            self.let_look(seen_by)

    def let_look(self, threads: Sequence[str]) -> None:
        """Wait until threads have gone round once more."""
        before, began = Counter(self.clock.asked), monotonic()
        while not self.ended.is_set() and any(self.clock.asked[name] < before[name] + 4 for name in threads):
            assert monotonic() - began < _PATIENCE_S
            sleep(0.001)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Watched, Heartbeat]]:
    clock, said, ended = Clock(), [], Event()
    monkeypatch.setattr(heartbeat, "_INTERVAL_S", 0.001)
    monkeypatch.setattr(heartbeat, "PrefixStore", lambda prefix, store: store)
    monkeypatch.setattr(heartbeat, "monotonic", clock)

    def end(reason: str) -> None:
        said.append(reason)
        ended.set()

    job = Job()
    job.store.set("process/1", "another-machine 1")
    job.store.set("1", "0")
    beating = Heartbeat(cast(Ranks, job), timeout_s=LIMIT_S, end=end)
    one = Watched(job.store, clock, said, ended)
    one.let_look((WATCH, GUARD))
    yield one, beating
    job.store.goes_on.set()
    beating.stop()


def test_a_silent_rank_ends_the_job_after_the_time_limit(watched: Any) -> None:
    job, _ = watched
    job.pass_time(3 * LIMIT_S, lives=True)
    job.pass_time(LIMIT_S, lives=False)
    assert not job.said
    job.pass_time(LIMIT_S / 4, lives=False)
    assert job.said[0] == f"rank 1 {SILENT}"


def test_a_rank_that_has_ended_is_not_missed(watched: Any) -> None:
    job, beating = watched
    job.store.set("1", "ended")
    job.pass_time(3 * LIMIT_S, lives=False)
    assert not job.said
    beating.stop()
    assert job.store.values["0"] == b"ended"


def test_a_rank_that_was_stopped_itself_gives_the_others_time(watched: Any) -> None:
    job, _ = watched
    job.store.goes_on.clear()  # what another one does meanwhile, it does not know
    job.let_look([GUARD])
    job.pass_time(2 * LIMIT_S, lives=True, step=2 * LIMIT_S, seen_by=[GUARD])
    job.store.goes_on.set()
    job.let_look([WATCH])
    job.pass_time(3 * LIMIT_S / 4, lives=False)
    job.pass_time(LIMIT_S, lives=True)
    assert not job.said
    job.pass_time(2 * LIMIT_S, lives=False)
    assert job.ended.is_set()


@pytest.mark.parametrize(("held", "holder"), [("False", "rank 0"), ("True", "the launcher")])
def test_a_store_that_is_silent_ends_the_job(watched: Any, monkeypatch: pytest.MonkeyPatch, held: str, holder: str) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", held)
    job, _ = watched
    job.store.goes_on.clear()
    job.pass_time(2 * LIMIT_S, lives=True, seen_by=[GUARD])
    assert job.said[0] == f"{holder}, which holds the ranks' store, {SILENT}"


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PrefixStore", lambda prefix, store: store)
    job, said = Job(), list[str]()
    Heartbeat(cast(Ranks, job), timeout_s=LIMIT_S, end=said.append).stop()
    assert said == ["rank 1 did not come within 600 s: start all 2"]
    assert job.store.waited == timedelta(seconds=600)


def test_a_rank_whose_launcher_is_gone_ends(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = watched
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert job.ended.wait(_PATIENCE_S) and job.said[0] == "whoever started this rank is gone"
