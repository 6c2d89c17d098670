"""flexspec itself, measured: plain and speculative over one compiled model."""

from collections.abc import Sequence

from flexspec.bench.measurement import GenerationSettings, Measurement
from flexspec.config import SamplingParams
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Output
from flexspec.runtime.stats import PHASES, Profile
from flexspec.tree_shape import PLAIN, Tree


class FlexspecSystem:
    """One engine, fed one prompt at a time.

    Args:
        name: as reports call it.
        engine: has nothing else to do.
        settings: what is generated.
        drafters: by name.
        tree: the token tree.
    """

    def __init__(
        self, name: str, engine: Engine, settings: GenerationSettings, *, drafters: Sequence[str] = (), tree: Tree = PLAIN
    ) -> None:
        self.name = name
        self.drafters = tuple(drafters)
        self.tree = tree
        self._engine = engine
        self._settings = settings
        self._profile = _no_time()

    @property
    def decode_profile(self) -> Profile:
        """Where the time of all decode steps since `reset_profile` went; prefill is left out."""
        return self._profile

    def reset_profile(self) -> None:
        """Begin the profile anew."""
        self._profile = _no_time()

    def run(self, prompt: Sequence[int], seed: int) -> Measurement:
        """As `System.run`; times are the request's own, taken inside the engine."""
        settings = self._settings
        params = SamplingParams(max_tokens=settings.max_tokens, temperature=settings.temperature, top_p=settings.top_p, seed=seed)
        request_id = self._engine.add(prompt, params)
        output: Output | None = None
        prefilled: Profile | None = None
        try:
            while output is None:
                for chunk in self._engine.step():
                    output = chunk.output
                    prefilled = prefilled or self._engine.profile()
        finally:
            self._engine.abort(request_id)
        assert prefilled is not None
        self._profile = _sum(self._profile, _difference(self._engine.profile(), prefilled))
        stats = output.stats
        return Measurement(
            new_tokens=stats.new_tokens,
            decode_tokens=stats.new_tokens - 1,
            steps=stats.steps,
            prefill_s=stats.prefill_s,
            decode_s=stats.decode_s,
        )


def _no_time() -> Profile:
    return Profile(steps=0, seconds=dict.fromkeys(PHASES, 0.0))


def _sum(a: Profile, b: Profile) -> Profile:
    return Profile(steps=a.steps + b.steps, seconds={phase: a.seconds[phase] + b.seconds[phase] for phase in PHASES})


def _difference(later: Profile, earlier: Profile) -> Profile:
    return Profile(steps=later.steps - earlier.steps, seconds={phase: later.seconds[phase] - earlier.seconds[phase] for phase in PHASES})
