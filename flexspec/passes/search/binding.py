"""What keeps a choice from being better."""

from collections.abc import Mapping

from flexspec.passes.search.case import Case, Solved
from flexspec.passes.search.solve import Solution
from flexspec.passes.search.space import LATENCY, Workload


def binding_constraint(best: Solved, solution: Solution, parts: Mapping[str, float], workload: Workload) -> str:
    """The first of these that applies: the memory, the bound on latency, waiting for the busiest device, the largest part of a step.

    Args:
        best: the choice.
        solution: that it is from.
        parts: seconds of its step.
        workload: what it is for.
    """
    if solution.without_memory is not None:
        least, case = solution.without_memory
        allowed = workload.max_latency_ms is None or least <= workload.max_latency_ms * 1e-3
        if allowed and _is_better(workload, least, case, best):
            figure = f"{least * 1e3:.3g} ms a token" if workload.objective == LATENCY else f"{case.shape.batch / least:.3g} tokens/s"
            return f"memory: {_name(case)} would come to {figure} at best, but does not fit"
    if workload.objective != LATENCY and solution.excluded is not None and solution.excluded < -best.tokens_per_second:
        return f"the latency bound of {workload.max_latency_ms:g} ms a token: what is faster in all takes longer for each request"
    part = max(parts, key=lambda name: parts[name])
    share = parts[part] / sum(parts.values())
    if part == "waiting":
        return f"the busiest device of the pipeline: micro-batches wait for it {share:.0%} of a step"
    return f"time: {part} takes {share:.0%} of a step"


def _is_better(workload: Workload, least: float, case: Case, best: Solved) -> bool:
    if workload.objective == LATENCY:
        return least < best.seconds_per_token
    return case.shape.batch / least > best.tokens_per_second


def _name(case: Case) -> str:
    shape = case.shape
    drafters = ", ".join(case.option.drafters)
    batch = f", batch {shape.batch}" if shape.batch > 1 else ""
    return f"dp {shape.dp} · pp {shape.pp} · tp {shape.tp}{batch}{f' with {drafters}' if drafters else ''}"
