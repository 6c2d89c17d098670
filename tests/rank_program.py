"""What every rank of the tests runs: cases in order, and what came of them in a file for each rank.

`python rank_program.py CASES.json RESULTS NUM_RANKS`: a case names a function of `rank_cases` and its arguments. `RESULTS.alone.json`
gets what those return that run on one device, and `RESULTS.<rank>.json` what they return on a rank. Ranks are forked, so what takes long
to import and to capture is done once.
"""

import json
import os
import signal
import sys
from contextlib import nullcontext
from typing import Any

import torch

from flexspec.api import compile as compiling
from flexspec.api import drafters as drafting
from flexspec.api import lower as lowering
from flexspec.api.lower import Compilation, captured_graph, lower
from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph
from flexspec.models.loaded_model import LoadedModel
from flexspec.parallel import ParallelPlan
from graph_cases import copied
from rank_cases import CASES, compiled
from rank_launch import COLUMN_THEN_ROW, divided

_LOWERED: dict[str, Compilation] = {}
_CAPTURED: dict[str, ModelGraph] = {}


def _identity(loaded: LoadedModel) -> str:
    return f"{loaded.name} {getattr(loaded.module, 'config', None)}"


def captured_once(loaded: LoadedModel, *, own_dtype: bool = False, **options: Any) -> ModelGraph:
    """As `captured_graph`, once for each model."""
    key = f"{_identity(loaded)} {own_dtype} {sorted((name, value) for name, value in options.items() if value)}"
    if key not in _CAPTURED:
        _CAPTURED[key] = captured_graph(loaded, own_dtype=own_dtype, **options)
    return copied(_CAPTURED[key])


def lower_once(loaded: LoadedModel, **options: Any) -> Compilation:
    """As `lower`, once for each part of a model; a share of a tensor-parallel group belongs to that group."""
    plan = options.get("plan", ParallelPlan())
    if plan.tp > 1 or plan.model:
        return lower(loaded, **options)
    key = repr((_identity(loaded), options.get("stage", 0), plan.pp, plan.stage_layers, options.get("hidden_states")))
    if key not in _LOWERED:
        _LOWERED[key] = lower(loaded, **options)
    else:
        with options.get("alone", nullcontext()):
            pass
    return _LOWERED[key]


def run(groups: list[dict[str, Any]], results: str, rank: str) -> None:
    """Compile for every group, and run its cases."""
    found: dict[str, Any] = {}
    for group in groups:
        name = group["name"]
        try:
            llm = compiled(**group["compile"] | group.get("on_rank", {}).get(rank, {}))
        except UsageError as error:
            found[name] = str(error)
            continue
        for asked, arguments in group.get("cases", {}).items():
            found[f"{name} {asked}"] = CASES[asked](llm, **arguments)
        if not group.get("fatal"):
            llm.close()
    with open(f"{results}.{rank}.json", "w") as file:
        json.dump(found, file)


def fork(num_ranks: int) -> int | None:
    """Which rank this process is; None for the one that has started them all, which returns when they have ended as they should."""
    started: list[int] = []
    for rank in range(num_ranks):
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
            return rank
        started.append(process)
    while started:
        process, status = os.wait()
        started.remove(process)
        if status:
            for other in started:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"process {process} ended with status {status}")
    return None


def main(cases_file: str, results: str, num_ranks: str) -> None:
    torch.set_num_threads(1)
    # Whoever started this in the background may have told it to ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    compiling.lower = drafting.lower = lower_once
    lowering.captured_graph = captured_once
    with open(cases_file) as file:
        groups = json.load(file)
    for group in groups["ranks"]:
        plan = group["compile"].get("parallel", {})
        if plan.get("partition") == COLUMN_THEN_ROW:
            plan |= divided(group["compile"]["model"], tp=plan["tp"])
    run(groups["alone"], results, "alone")
    rank = fork(int(num_ranks))
    if rank is not None:
        run(groups["ranks"], results, str(rank))


if __name__ == "__main__":
    main(*sys.argv[1:])
