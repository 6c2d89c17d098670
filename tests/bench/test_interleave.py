"""Groups of prompts, turns and medians, on systems that only keep a log."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flexspec.bench.interleave import interleave, warm_up
from flexspec.bench.measurement import Measurement, median_run
from flexspec.bench.prompt_groups import BenchPrompt, full_groups, warm_up_groups
from flexspec.tree_shape import PLAIN, Tree

PROMPTS = [BenchPrompt(id=str(n), category="ab"[n % 2], token_ids=[n]) for n in range(3)]
RUN = Measurement(new_tokens=9, decode_tokens=8, steps=9, prefill_s=0.5, decode_s=1.0)


class LoggedSystem:
    """Takes the next of `seconds` for each run; Ctrl-C comes when they are used up."""

    drafters: tuple[str, ...] = ()
    tree: Tree = PLAIN

    def __init__(self, name: str, log: list[str], seconds: Sequence[float] | None = None) -> None:
        self.name = name
        self._log = log
        self._seconds = None if seconds is None else list(seconds)

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        self._log.append(f"{self.name} {list(prompts)} {seed}")
        if self._seconds is None:
            return RUN
        if not self._seconds:
            raise KeyboardInterrupt
        return replace(RUN, decode_s=self._seconds.pop(0))


def test_systems_take_turns_at_being_first() -> None:
    log: list[str] = []
    systems = [LoggedSystem(name, log) for name in "xyz"]
    said: list[str] = []
    warm_up(systems, warm_up_groups(PROMPTS, 1, 1), said.append)
    assert log == ["x [[0]] 0", "y [[0]] 0", "z [[0]] 0"]
    log.clear()
    samples, interrupted = interleave(systems, full_groups(PROMPTS, 1)[0], said.append)
    order = ["x [[0]] 0", "y [[0]] 0", "z [[0]] 0", "y [[1]] 1", "z [[1]] 1", "x [[1]] 1", "z [[2]] 2", "x [[2]] 2", "y [[2]] 2"]
    assert log == order
    assert [sample.category for sample in samples] == ["a", "b", "a"] and not interrupted
    assert "prompt 2 of 3: z" in said


def test_groups_are_full_and_mixed() -> None:
    groups, too_few = full_groups(PROMPTS, 2)
    assert [(group.category, group.token_ids, group.seed) for group in groups] == [("mixed", [[0], [1]], 0)]
    assert too_few == ["2"]
    assert full_groups(PROMPTS, 4) == ([], ["0", "1", "2"])
    assert [group.token_ids for group in warm_up_groups(PROMPTS, 2, 2)] == [[[0], [1]], [[2], [0]]]


def test_of_several_turns_the_median_counts() -> None:
    log: list[str] = []
    systems = [LoggedSystem("x", log, [3.0, 1.0, 2.0]), LoggedSystem("y", log)]
    said: list[str] = []
    samples, _ = interleave(systems, full_groups(PROMPTS[:1], 1)[0], said.append, repeat=3)
    assert said[2] == "prompt 1 of 1, run 2 of 3: y"
    assert [entry[0] for entry in log] == list("xyyxxy")
    assert samples[0].measurements["x"].decode_s == 2.0
    even = [replace(RUN, decode_s=seconds, prefill_s=seconds) for seconds in (1.0, 2.0)]
    assert (median_run(even).decode_s, median_run(even).prefill_s) == (2.0, 1.5)


def test_what_was_measured_before_ctrl_c_is_kept() -> None:
    groups = full_groups(PROMPTS, 1)[0]
    samples, interrupted = interleave([LoggedSystem("x", [], [1.0, 2.0])], groups, lambda _: None)
    assert [sample.measurements["x"].decode_s for sample in samples] == [1.0, 2.0] and interrupted
    with pytest.raises(KeyboardInterrupt):
        interleave([LoggedSystem("x", [], [])], groups, lambda _: None)
