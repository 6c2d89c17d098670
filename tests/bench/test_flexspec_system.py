"""What counts of a group of prompts, with an engine that plays steps out of a script."""

from collections.abc import Sequence
from typing import Any

import pytest

from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.measurement import GenerationSettings
from flexspec.config import SamplingParams
from flexspec.runtime.output import Chunk, Output
from flexspec.runtime.periodic_log import LOGGER
from flexspec.runtime.stats import PHASES, Profile, RequestStats


class ScriptedEngine:
    """Each step is the new tokens of each request, by its id; a request ends when it has as many as it asked for."""

    def __init__(self, script: Sequence[dict[int, int]]) -> None:
        self.script = list(script)
        self.seeds: list[int | None] = []
        self.aborted: list[int] = []
        self._stats: dict[int, RequestStats] = {}
        self._steps = 0

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        self.seeds.append(params.seed)
        self._stats[len(self._stats)] = RequestStats()
        return len(self._stats) - 1

    def step(self) -> list[Chunk]:
        self._steps += 1
        chunks = []
        for request_id, count in self.script.pop(0).items():
            stats = self._stats[request_id]
            stats.new_tokens += count
            stats.steps += 1
            done = stats.new_tokens == 5
            output = Output(prompt_token_ids=[1], token_ids=[2] * 5, text="", finish_reason="length", stats=stats) if done else None
            chunks.append(Chunk(request_id=request_id, token_ids=[2] * count, num_accepted=count - 1, text="", output=output))
        return chunks

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)

    def profile(self) -> Profile:
        return Profile(steps=self._steps, seconds=dict.fromkeys(PHASES, 0.25 * self._steps))


def test_the_clock_runs_from_when_all_have_a_token() -> None:
    engine: Any = ScriptedEngine([{0: 1}, {0: 2, 1: 1}, {0: 1, 1: 3}, {0: 1}, {1: 1}])
    system = FlexspecSystem("x", engine, GenerationSettings(max_tokens=5))
    measured = system.run([[1], [1]], seed=6)
    assert (measured.new_tokens, measured.decode_tokens, measured.steps) == (10, 6, 4 + 3)
    assert (engine.seeds, engine.aborted) == ([6, 7], [0, 1])
    assert measured.prefill_s > 0 and measured.decode_s > 0
    times = system.step_times
    assert (times.steps, times.ms["forward"], times.drafters_run_models) == (3, 250.0, False)
    system.reset()
    assert system.step_times.steps == 0


def test_a_text_may_end_before_the_others_begin() -> None:
    engine: Any = ScriptedEngine([{0: 5}, {1: 5}])
    measured = FlexspecSystem("x", engine, GenerationSettings(max_tokens=5)).run([[1], [1]], seed=0)
    assert (measured.decode_tokens, measured.tokens_per_s) == (0, 0.0)


def test_log_lines_begin_with_the_systems_name(caplog: pytest.LogCaptureFixture) -> None:
    class TalkingEngine(ScriptedEngine):
        def step(self) -> list[Chunk]:
            LOGGER.info("%s", "5% done")
            return super().step()

    engine: Any = TalkingEngine([{0: 1}, {0: 4}])
    with caplog.at_level("INFO", logger="flexspec"):
        FlexspecSystem("flexspec 2,1", engine, GenerationSettings(max_tokens=5)).run([[1]], seed=0)
        LOGGER.info("done")
    assert [record.getMessage() for record in caplog.records] == ["flexspec 2,1: 5% done"] * 2 + ["done"]
