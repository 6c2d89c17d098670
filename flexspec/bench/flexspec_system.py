"""One of our own systems, measured; several may share one compiled model."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from flexspec.bench.measurement import GenerationSettings, Measurement
from flexspec.bench.step_times import StepTimes
from flexspec.config import SamplingParams
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Output
from flexspec.runtime.periodic_log import LOGGER
from flexspec.runtime.stats import PHASES, Profile
from flexspec.tree_shape import PLAIN, Tree


class FlexspecSystem:
    """One engine, fed one group of prompts at a time.

    Args:
        name: as reports call it.
        engine: has nothing else to do, and room for a whole group.
        settings: what is generated.
        drafters: fill the engine's trees.
        tree: the token tree.
    """

    def __init__(
        self, name: str, engine: Engine, settings: GenerationSettings, *, drafters: Sequence[Drafter] = (), tree: Tree = PLAIN
    ) -> None:
        self.name = name
        self.drafters = tuple(drafter.name for drafter in drafters)
        self.tree = tree
        self._drafters_run_models = any(isinstance(drafter, LevelDrafter) for drafter in drafters)
        self._engine = engine
        self._settings = settings
        self.reset()

    @property
    def step_times(self) -> StepTimes:
        """Where the time of all decode steps since `reset` went; prefill is left out."""
        return StepTimes.of(self._profile, drafters_run_models=self._drafters_run_models)

    def reset(self) -> None:
        """Forget what ran so far; what the drafters and adaptive trees have learned stays."""
        self._profile = _no_time()

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """As `System.run`; what the log is told meanwhile begins with the system's name."""
        with _named_log(self.name):
            return self._run(prompts, seed)

    def _run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        engine, settings = self._engine, self._settings
        outputs: list[Output] = []
        decode_tokens = 0
        began = perf_counter()
        requests = [engine.add(prompt, request_params(settings, seed + place)) for place, prompt in enumerate(prompts)]
        without_token = set(requests)
        try:
            while without_token:
                chunks = engine.step()
                without_token.difference_update(chunk.request_id for chunk in chunks)
                outputs += [chunk.output for chunk in chunks if chunk.output is not None]
            prefilled, decoding = engine.profile(), perf_counter()
            while len(outputs) < len(requests):
                chunks = engine.step()
                decode_tokens += sum(len(chunk.token_ids) for chunk in chunks)
                outputs += [chunk.output for chunk in chunks if chunk.output is not None]
            ended = perf_counter()
        finally:
            for request_id in requests:
                engine.abort(request_id)
        self._profile = _sum(self._profile, _difference(engine.profile(), prefilled))
        for output in outputs:
            output.raise_for_error()
        stats = [output.stats for output in outputs]
        drafts = DraftCounts()
        for one in stats:
            drafts.add(one.acceptance)
        return Measurement(
            new_tokens=sum(one.new_tokens for one in stats),
            decode_tokens=decode_tokens,
            steps=sum(one.steps for one in stats),
            prefill_s=decoding - began,
            decode_s=ended - decoding,
            drafts=drafts,
        )


@contextmanager
def _named_log(name: str) -> Iterator[None]:
    def prefix(record: logging.LogRecord) -> bool:
        record.msg, record.args = f"{name}: {record.getMessage()}", None
        return True

    LOGGER.addFilter(prefix)
    try:
        yield
    finally:
        LOGGER.removeFilter(prefix)


def request_params(settings: GenerationSettings, seed: int) -> SamplingParams:
    """What a request asks for."""
    return SamplingParams(max_tokens=settings.max_tokens, temperature=settings.temperature, top_p=settings.top_p, seed=seed)


def _no_time() -> Profile:
    return Profile(steps=0, seconds=dict.fromkeys(PHASES, 0.0))


def _sum(a: Profile, b: Profile) -> Profile:
    return Profile(steps=a.steps + b.steps, seconds={phase: a.seconds[phase] + b.seconds[phase] for phase in PHASES})


def _difference(later: Profile, earlier: Profile) -> Profile:
    return Profile(steps=later.steps - earlier.steps, seconds={phase: later.seconds[phase] - earlier.seconds[phase] for phase in PHASES})
