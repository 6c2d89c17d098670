"""Engines whose test asks for no blocks run on small pages, and now and then none is free, so that requests are preempted.

Whole requests in one block each, as CPUs have them by default, are what the tests of compiled models run on; a test that
can't do with preemption asks for `block_size=None`.
"""

from weakref import WeakKeyDictionary

import pytest

from flexspec.runtime.engine import Engine
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.scheduler import Scheduler


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    make_engine, make_room = Engine.__init__, Scheduler.make_room
    steps: WeakKeyDictionary[KVCache, int] = WeakKeyDictionary()  # of several requests, for the engines concerned

    def with_pages(self, model, **options):
        make_engine(self, model, **({"block_size": 4} | options))
        if "block_size" not in options:
            steps[self.cache] = 0

    def without_blocks(self):
        """At the 3rd, 6th, 12th … step of several requests: the more rarely, the longer they run, so that all come to their end."""
        if self._cache not in steps or len(self.running) < 2:
            return make_room(self)
        steps[self._cache] += 1
        third, rest = divmod(steps[self._cache], 3)
        if rest or third & (third - 1):
            return make_room(self)
        free, self._cache._free_blocks = self._cache._free_blocks, []
        preempted = make_room(self)
        self._cache._free_blocks += free
        return preempted

    monkeypatch.setattr(Engine, "__init__", with_pages)
    monkeypatch.setattr(Scheduler, "make_room", without_blocks)
