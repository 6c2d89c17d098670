"""The clock of other systems: tokens by pass, prefill up to the end of the first."""

import pytest

from flexspec.bench import pass_clock
from flexspec.bench.pass_clock import PassClock


def test_tokens_of_one_pass_may_arrive_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 11.5, 13.0, 13.25, 14.0])
    monkeypatch.setattr(pass_clock, "perf_counter", lambda: next(times))
    clock = PassClock()
    clock.start()
    clock.note(2)  # a first pass may bring several
    clock.note(1, same_pass=True)
    clock.note(1)
    clock.note(1, same_pass=True)
    clock.note(3)
    measured = clock.measurement()
    assert clock.tokens == 8
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (8, 5, 3)
    assert (measured.prefill_s, measured.decode_s) == (1.5, 2.5)
