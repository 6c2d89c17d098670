"""From a loaded model to a compiled one: capture, passes, code generation, warm-up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.compile import compile_for_cpu
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.row_invariance import RowInvariance, probe_row_invariance, random_features
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.cost import ModelCost, model_cost
from flexspec.ir.graph import ModelGraph, PassNote
from flexspec.ir.ops import ATTENTION
from flexspec.ir.verify import verify
from flexspec.models.loaded_model import LoadedModel
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from flexspec.passes.tokenwise import largest_position

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """A compiled model and how it came about.

    Attributes:
        name: what the user calls the model.
        model: ready to run, warmed up.
        notes: what each pass matched.
        cost: FLOPs and parameters.
        row_invariance: what the probe saw at warm-up.
    """

    name: str
    model: LoweredModel
    notes: Sequence[PassNote]
    cost: ModelCost
    row_invariance: RowInvariance


def captured_graph(loaded: LoadedModel, *, hidden_states: Sequence[str] = (), feature_size: int = 0) -> ModelGraph:
    """Capture a model, before any pass; the options are those of `capture`.

    Raises:
        UsageError: if it is not a decoder that can be compiled.
    """
    graph = capture(loaded.module, name=loaded.name, hidden_states=hidden_states, feature_size=feature_size)
    verify(graph, "captured")
    if not graph.nodes(ATTENTION):
        raise UsageError(f"model {loaded.name} has no attention that was recognised: only decoders with attention can be compiled")
    return graph


def run_pipelines(graph: ModelGraph) -> None:
    """Run both pipelines on a captured graph, and check it after each; then it is ready for code generation.

    Raises:
        UsageError: if a pass meets a form of the model that it does not support.
    """
    with torch.no_grad():
        run_passes(graph, RECOGNITION)
        verify(graph, "recognised")
        run_passes(graph, SERVING)
        verify(graph, "serving")


def lower(
    loaded: LoadedModel,
    *,
    dtype: torch.dtype,
    buckets: Sequence[int],
    store: WeightStore,
    native: bool = True,
    device: torch.device = CPU,
    hidden_states: Sequence[str] = (),
    feature_size: int = 0,
) -> Compilation:
    """Compile a model and run a pass of every bucket size once.

    Args:
        loaded: the model; its module is not changed.
        dtype: of weights and KV cache.
        buckets: sizes of a pass, ascending; the last is the largest there will be.
        store: where weights are shared with other models.
        native: False keeps to PyTorch operators on a CPU.
        device: where it runs.
        hidden_states: submodules whose outputs the compiled model gives besides, as in `capture`.
        feature_size: columns of the features that the module takes; 0 if it takes none.

    Raises:
        UsageError: if it is not a decoder that can be compiled, or has no such hidden states.
    """
    # Weights made under a caller's inference mode could not be used outside it.
    with torch.inference_mode(False):
        graph = captured_graph(loaded, hidden_states=hidden_states, feature_size=feature_size)
        run_pipelines(graph)
    limits = [limit for limit in (loaded.max_positions, largest_position(graph)) if limit is not None]
    cost = model_cost(graph)
    notes = tuple(graph.notes)
    max_positions = min(limits, default=None)
    model: LoweredModel
    if device.type == "cpu":
        model = compile_for_cpu(graph, dtype=dtype, max_positions=max_positions, max_pass_tokens=buckets[-1], store=store, native=native)
    else:
        from flexspec.codegen.cuda.compile import compile_for_gpu  # needs Triton, which is there only where GPUs may be

        model = compile_for_gpu(graph, dtype=dtype, max_positions=max_positions, buckets=buckets, store=store, device=device)
    row_invariance = probe_row_invariance(model)
    _warm_up(model, buckets)
    return Compilation(name=loaded.name, model=model, notes=notes, cost=cost, row_invariance=row_invariance)


def _warm_up(model: LoweredModel, buckets: Sequence[int]) -> None:
    limit = min(buckets[-1], model.max_positions or buckets[-1])
    kv = KVStorage.of_requests(model.kv_shape, limit)
    for size in buckets:
        count = min(size, limit)
        last = np.array([count - 1], dtype=np.int32)
        batch = chain_batch(np.zeros(count, dtype=np.int64), block_table=kv.block_table, output_rows=last)
        model.forward(batch, kv, random_features(model, count))
