"""A rank that is silent is noticed; one that has ended, or a machine that slept, is none."""

import os
from threading import Event
from time import monotonic, sleep

import pytest

from flexspec.runtime.distributed import heartbeat
from flexspec.runtime.distributed.heartbeat import Heartbeat


class Store:
    """What all ranks read and write; `stall` holds the next reading up."""

    def __init__(self):
        self.values = {}
        self.stall = 0.0

    def clone(self):
        return self

    def set(self, name, value):
        self.values[name] = value.encode()

    def get(self, name):
        return self.values[name]

    def wait(self, names):
        pass

    def check(self, names):
        return all(name in self.values for name in names)

    def multi_get(self, names):
        found = [self.values.get(name, b"") for name in names]
        stall, self.stall = self.stall, 0.0
        sleep(stall)
        return found


class Job:
    rank, size = 0, 2

    def __init__(self):
        self.store = Store()


@pytest.fixture
def watched(monkeypatch):
    """A job of which rank 1 is played by the test, its heartbeat, and what it ended with."""
    monkeypatch.setattr(heartbeat, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(heartbeat, "PrefixStore", lambda prefix, store: store)
    said, ended = [], Event()

    def end(reason):
        said.append(reason)
        ended.set()

    job = Job()
    job.store.set("process/1", "another-machine 1")
    job.store.set("1", "0")
    beating = Heartbeat(job, timeout_s=0.2, end=end)
    yield job.store, beating, said, ended
    beating.stop()


def beat(store, seconds):
    until, beats = monotonic() + seconds, 0
    while monotonic() < until:
        beats += 1
        store.set("1", str(beats))
        sleep(0.02)


def test_a_silent_rank_ends_the_job_within_the_time_limit(watched):
    store, _, said, ended = watched
    beat(store, 0.3)
    assert not said
    began = monotonic()
    assert ended.wait(5) and said[0] == "rank 1 has not answered for 0.2 s"
    assert monotonic() - began > 0.1


def test_a_rank_that_has_ended_is_not_missed(watched):
    store, beating, said, _ = watched
    store.set("1", "ended")
    sleep(0.4)
    assert not said
    beating.stop()
    assert store.values["0"] == b"ended"


def test_a_rank_that_was_stopped_itself_gives_the_others_time(watched):
    store, _, said, ended = watched
    beat(store, 0.05)
    store.stall = 0.15  # what another one did meanwhile, it does not know
    beat(store, 0.4)
    assert not said
    assert ended.wait(5)


@pytest.mark.parametrize(("held", "holder"), [("False", "rank 0"), ("True", "the launcher")])
def test_a_store_that_is_silent_ends_the_job(watched, monkeypatch, held, holder):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", held)
    store, _, said, ended = watched
    store.stall = 1.0
    assert ended.wait(5) and said[0] == f"{holder}, which holds the ranks' store, has not answered for 0.2 s"


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(heartbeat, "PrefixStore", lambda prefix, store: store)
    said = []

    def too_long(names):
        raise RuntimeError("timed out")

    job = Job()
    job.store.wait = too_long
    Heartbeat(job, timeout_s=0.2, end=said.append).stop()
    assert said == ["rank 1 did not come within the time that ranks have to"]


def test_a_rank_whose_launcher_is_gone_ends(watched, monkeypatch):
    store, _, said, ended = watched
    monkeypatch.setattr(os, "getppid", lambda: 1)
    beat(store, 0.1)
    assert ended.wait(5) and said[0] == "whoever started this rank is gone"
