"""The time of a step of one strategy, all requests decoding."""

from collections.abc import Callable, Sequence
from time import perf_counter

from flexspec.calibration.report.job_file import Run
from flexspec.calibration.report.known_acceptance import expected_tokens
from flexspec.calibration.report.sizes import Sizes
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.synthetic import SyntheticDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import PLAIN, TreeSpec

_UNTIMED_STEPS = 2
"""Of each request, after its prompt: by then all pipelines are full."""
_RECORDED = 1.3
"""Tokens that are recorded for each that is expected; what is drafted after a recorded text is wrong, but not less."""


class TimedEngine:
    """One replica's engine for a strategy, on its driver.

    Args:
        model: the compiled model.
        run: the strategy.
        sizes: how much is measured.
        requests: seeds and prompts of this replica.
        drafter: knows what they emit.
    """

    def __init__(
        self, model: CompiledModel, run: Run, sizes: Sizes, requests: Sequence[tuple[int, Sequence[int]]], drafter: SyntheticDrafter
    ) -> None:
        self._sizes, self._requests, self._micro_batches = sizes, requests, run.plan.micro_batches
        self._most = (sizes.steps + _UNTIMED_STEPS + run.plan.micro_batches + 2) * (run.tree + 1)
        self._engine = Engine(
            model,
            drafters=[drafter] if run.tree else [],
            tree=TreeSpec(widths=(1,) * run.tree) if run.tree else PLAIN,
            max_batch=len(requests),
            max_len=sizes.prompt_tokens + self._most,
            micro_batches=run.plan.micro_batches,
            log_every_s=None,
        )

    def step_seconds(self, meet: Callable[[], object]) -> float:
        """Seconds from one step of a request to its next.

        Args:
            meet: is called when all prompts are computed; waits for other replicas.
        """
        engine = self._engine
        steps = {engine.add(prompt, _params(seed, self._most)): 0 for seed, prompt in self._requests}
        try:
            while min(steps.values()) <= _UNTIMED_STEPS:
                for chunk in engine.step():
                    steps[chunk.request_id] += bool(chunk.token_ids)
            meet()
            began = perf_counter()
            for _ in range(self._sizes.steps * self._micro_batches):
                engine.step()
            return (perf_counter() - began) / self._sizes.steps
        finally:
            for request_id in steps:
                engine.abort(request_id)


def record(model: CompiledModel, sizes: Sizes, prompts: Sequence[Sequence[int]], drafter: SyntheticDrafter) -> None:
    """Tell a drafter what plain decoding emits after prompts, whose seeds are their places."""
    most = round(_RECORDED * (sizes.steps + _UNTIMED_STEPS + 2) * expected_tokens((1,) * max(sizes.trees), [sizes.acceptance]))
    engine = Engine(model, max_batch=len(prompts), max_len=sizes.prompt_tokens + most, log_every_s=None)
    outputs = engine.generate(prompts, [_params(seed, most) for seed in range(len(prompts))])
    for seed, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        drafter.record(prompt, seed, output.token_ids)


def _params(seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=True)
