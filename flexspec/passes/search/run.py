"""The search from model and hardware to result."""

import time
from collections.abc import Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.errors import UsageError
from flexspec.parallel import ParallelPlan
from flexspec.passes.search.binding import binding_constraint
from flexspec.passes.search.breakdown import memory_parts, time_parts
from flexspec.passes.search.case import Solved
from flexspec.passes.search.cost import CostModel
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.records import ModelRecord
from flexspec.passes.search.result import Candidate, Prediction, SearchResult
from flexspec.passes.search.solve import solve
from flexspec.passes.search.space import Workload
from flexspec.strategy import MAX_PASS_TOKENS, Strategy
from flexspec.tree_shape import PLAIN, TreeLimits


def search_strategy(
    model: ModelRecord,
    drafters: Sequence[DrafterRecord],
    hardware: Hardware,
    workload: Workload,
    acceptance: AcceptanceTable,
    *,
    top: int = 2,
    capture_seconds: float = 0.0,
) -> SearchResult:
    """The best way to run a model and some of its drafters.

    Args:
        model: what the model does, read off its configuration.
        drafters: those that may be used.
        hardware: what it runs on.
        workload: what it is for.
        acceptance: of the drafters.
        top: length of the ranking.
        capture_seconds: what it took to read the models.

    Raises:
        UsageError: if the model can't do that, or no strategy fits the memory or the latency bound.
    """
    started = time.perf_counter()
    _check(model, workload)
    costs = CostModel(model, drafters, hardware, workload, acceptance)
    bound = None if workload.max_latency_ms is None else workload.max_latency_ms * 1e-3
    solution = solve(costs.columns(), objective=workload.objective, max_seconds=bound, top=max(top, 2))
    if not solution.ranking:
        raise UsageError(_impossible(costs, solution.fastest, workload))

    def candidate(solved: Solved) -> Candidate:
        return candidate_of(costs, solved)

    best = solution.ranking[0]
    return SearchResult(
        model=model.name,
        hardware=hardware.name,
        devices=hardware.num_devices,
        workload=workload,
        ranking=[candidate(one) for one in solution.ranking],
        baseline=None if solution.baseline is None else candidate(solution.baseline),
        incremental=None if solution.plain is None else candidate(solution.plain),
        pareto=[candidate(one) for one in solution.front],
        binding=binding_constraint(best, solution, time_parts(costs, best), workload),
        notes=costs.notes(),
        candidates=solution.candidates,
        pruned=solution.pruned,
        skipped=costs.skipped,
        seconds=time.perf_counter() - started,
        capture_seconds=capture_seconds,
    )


def _check(model: ModelRecord, workload: Workload) -> None:
    if model.max_positions is not None and workload.length > model.max_positions:
        raise UsageError(
            f"context={workload.context} and new_tokens={workload.new_tokens} are not allowed: model {model.name} has "
            f"{model.max_positions} positions; give at most that together"
        )


def _impossible(costs: CostModel, fastest: float, workload: Workload) -> str:
    if fastest < float("inf"):
        return (
            f"max_latency_ms={workload.max_latency_ms:g} can't be kept: the fastest strategy takes {fastest * 1e3:.3g} ms a token; "
            "give at least that, a smaller batch or context, or faster hardware"
        )
    return (
        f"model {costs.model.name} does not fit hardware {costs.hardware.name}: {costs.least_memory()}; give more or larger devices, or a "
        "smaller batch or context"
    )


def candidate_of(costs: CostModel, solved: Solved) -> Candidate:
    """A strategy with what is predicted of it, as a result lists it."""
    case, tree, workload = solved.case, solved.grown, costs.workload
    shape = case.shape
    plan = ParallelPlan(
        dp=shape.dp,
        pp=shape.pp,
        tp=shape.tp,
        micro_batches=shape.micro_batches,
        stage_layers=solved.split.layers,
        partition=case.division.partition,
        placement=dict(case.option.placement),
        model=costs.model.fingerprint,
    )
    rows = shape.requests * (tree.size + 1)
    strategy = Strategy(
        dtype=workload.dtype,
        drafters=case.option.drafters,
        tree=TreeLimits(depth=max(map(len, tree.levels.values())), branch=tree.branch, budget=tree.size) if tree.size else PLAIN,
        max_batch=-(-shape.batch // shape.dp),
        max_len=workload.length,
        parallel=plan,
    )
    if rows > strategy.buckets[-1]:
        strategy = strategy.replaced(buckets=(*strategy.buckets, min(rows, MAX_PASS_TOKENS)))
    memory = memory_parts(costs, solved)
    predicted = Prediction(
        step_ms=solved.cycle * 1e3,
        tokens_per_step=tree.expected,
        ms_per_token=solved.seconds_per_token * 1e3,
        tokens_per_s=solved.tokens_per_second,
        memory_gb_per_device=sum(memory.values()) / 1e9,
        parts={name: seconds * 1e3 for name, seconds in time_parts(costs, solved).items()},
        memory_parts={name: size / 1e9 for name, size in memory.items()},
    )
    return Candidate(
        strategy=strategy, kv_cache_dtype=workload.kv_cache_dtype, batch=shape.batch, requests=shape.requests, predicted=predicted
    )
