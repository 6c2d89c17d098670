"""From a loaded model to a compiled one: capture, passes, code generation, warm-up."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch

from flexspec.api.devices import ON_CPU, Placement
from flexspec.codegen.batch import chain_batch
from flexspec.codegen.compile import compile_for_cpu
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.codegen.row_invariance import RowInvariance, probe_row_invariance, random_features
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.cost import ModelCost, model_cost
from flexspec.ir.graph import ModelGraph, PassNote
from flexspec.ir.ops import ATTENTION
from flexspec.ir.verify import verify
from flexspec.models.loaded_model import LoadedModel
from flexspec.parallel import ParallelPlan
from flexspec.passes.divide import Division, divide, is_divided
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT, FUSION, SERVING, SERVING_STAGE
from flexspec.passes.shard import ALONE, Share
from flexspec.passes.stages import StatePlace
from flexspec.runtime.periodic_log import LOGGER

WHOLE = ParallelPlan()


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """A compiled model and how it came about.

    Attributes:
        name: what the user calls the model.
        model: ready to run, warmed up.
        notes: what each pass matched.
        cost: FLOPs and parameters.
        row_invariance: what the probe saw at warm-up.
        state_places: for each hidden state that was asked for, the pipeline stage whose model gives it.
    """

    name: str
    model: LoweredModel
    notes: Sequence[PassNote]
    cost: ModelCost
    row_invariance: RowInvariance
    state_places: Sequence[StatePlace] = ()

    @property
    def missed(self) -> str:
        """What passes should have recognised and did not, in words; empty if there is nothing."""
        missed = [f"{note.name} {note.matches} of {note.expected}" for note in self.notes if note.matches < note.expected]
        return f"passes did not recognise all that they should have ({', '.join(missed)} places)" if missed else ""


class LowerOptions(TypedDict):
    """The arguments of `lower` that are alike for all models that run together."""

    dtype: torch.dtype
    buckets: Sequence[int]
    store: WeightStore
    native: bool
    placement: Placement


class ModelPart(TypedDict, total=False):
    """The arguments of `lower` that say what one rank runs of a model; none for all of it."""

    plan: ParallelPlan
    stage: int
    group: ParallelGroup | None
    alone: AbstractContextManager[None]


def captured_graph(loaded: LoadedModel, *, hidden_states: Sequence[str] = (), feature_size: int = 0, own_dtype: bool = False) -> ModelGraph:
    """Capture a model, before any pass; the options are those of `capture`.

    Raises:
        UsageError: if it is not a decoder that can be compiled.
    """
    graph = capture(loaded.module, name=loaded.name, hidden_states=hidden_states, feature_size=feature_size, own_dtype=own_dtype)
    verify(graph, "captured")
    return graph


def run_pipelines(graph: ModelGraph, plan: ParallelPlan = WHOLE, *, stage: int = 0, share: Share = ALONE) -> Division:
    """Run both pipelines on a captured graph, and check it after each; then it is ready for code generation.

    Args:
        graph: rewritten in place, into what one rank of the plan runs.
        plan: how the model is divided.
        stage: the rank's pipeline stage.
        share: its part of that stage.

    Raises:
        UsageError: if a pass meets a form of the model that it does not support, or the plan is for another model.
    """
    with torch.no_grad():
        run_passes(graph, FLAT)
        if not graph.nodes(ATTENTION):
            raise UsageError(f"model {graph.facts.name} has no attention that was recognised: only decoders with attention can be compiled")
        division = divide(graph, plan, stage=stage, share=share)
        run_passes(graph, FUSION)
        verify(graph, "recognised")
        run_passes(graph, SERVING if stage == plan.pp - 1 else SERVING_STAGE)
        verify(graph, "serving")
    return division


def lower(
    loaded: LoadedModel,
    *,
    dtype: torch.dtype,
    buckets: Sequence[int],
    store: WeightStore,
    native: bool = True,
    placement: Placement = ON_CPU,
    hidden_states: Sequence[str] = (),
    feature_size: int = 0,
    plan: ParallelPlan = WHOLE,
    stage: int = 0,
    group: ParallelGroup | None = None,
    alone: AbstractContextManager[None] | None = None,
) -> Compilation:
    """Compile a model, or what one rank of a plan runs of it, and run a pass of every bucket size once.

    The ranks of a tensor-parallel group have to call this at the same time, with the same arguments but for `group`.

    Args:
        loaded: the model; its module is not changed.
        dtype: of weights and activations.
        buckets: sizes of a pass, ascending; the last is the largest there will be.
        store: where weights are shared with other models.
        native: False keeps to PyTorch operators on a CPU.
        placement: where it runs.
        hidden_states: submodules whose outputs the compiled model gives besides, as in `capture`.
        feature_size: columns of the features that the module takes; 0 if it takes none.
        plan: how the model is divided.
        stage: the pipeline stage to compile.
        group: this rank's tensor-parallel group; None if it has none.
        alone: entered around all that needs no other rank of the group.

    Raises:
        UsageError: if it is not a decoder that can be compiled, has no such hidden states, or the plan is for another model.
    """
    share = ALONE if group is None else Share(rank=group.rank, size=group.size, group=group.name)
    with alone or nullcontext():
        # Weights made under a caller's inference mode could not be used outside it.
        with torch.inference_mode(False):
            graph = captured_graph(loaded, hidden_states=hidden_states, feature_size=feature_size, own_dtype=is_divided(plan))
            division = run_pipelines(graph, plan, stage=stage, share=share)
        limits = [limit for limit in (loaded.max_positions, division.max_positions, graph.facts.max_positions) if limit is not None]
        cost = model_cost(graph)
        notes = tuple(graph.notes)
        model = generate_code(
            graph,
            dtype=dtype,
            max_positions=min(limits, default=None),
            buckets=buckets,
            store=store,
            native=native,
            placement=placement,
            group=group,
        )
    row_invariance = probe_row_invariance(model)
    _warm_up(model, buckets)
    compilation = Compilation(
        name=loaded.name, model=model, notes=notes, cost=cost, row_invariance=row_invariance, state_places=division.state_places
    )
    if missed := compilation.missed:
        LOGGER.warning("model %s: %s; it runs as it is, slower than it could", loaded.name, missed)
    return compilation


def generate_code(
    graph: ModelGraph,
    *,
    dtype: torch.dtype,
    max_positions: int | None,
    buckets: Sequence[int],
    store: WeightStore,
    native: bool = True,
    placement: Placement = ON_CPU,
    group: ParallelGroup | None = None,
) -> LoweredModel:
    """A graph that went through both pipelines, and is used up, as a model for a device; the options are those of `lower`."""
    if placement.device.type == "cpu":
        assert placement.cache_dtype in (None, dtype), f"a cache in {placement.cache_dtype} of a model in {dtype}"
        return compile_for_cpu(
            graph, dtype=dtype, max_positions=max_positions, max_pass_tokens=buckets[-1], store=store, native=native, group=group
        )
    from flexspec.codegen.cuda.compile import compile_for_gpu  # needs Triton, which is there only where GPUs may be

    return compile_for_gpu(
        graph,
        dtype=dtype,
        max_positions=max_positions,
        buckets=buckets,
        store=store,
        device=placement.device,
        cache_dtype=placement.cache_dtype,
        allow_references=placement.allow_references,
    )


def _warm_up(model: LoweredModel, buckets: Sequence[int]) -> None:
    limit = min(buckets[-1], model.max_positions or buckets[-1])
    kv = KVStorage.of_requests(model.kv_shape, limit)
    for size in buckets:
        count = min(size, limit)
        last = np.array([count - 1], dtype=np.int32)
        batch = chain_batch(np.zeros(count, dtype=np.int64), block_table=kv.block_table, output_rows=last)
        model.forward(batch, kv, random_features(model, count))
