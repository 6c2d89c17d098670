"""What compilation does to a model, without running it: operators, matches, memory, FLOPs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from flexspec.api.devices import Placement, dtypes_of, find_device, find_dtype
from flexspec.api.lower import captured_graph, generate_code, run_pipelines
from flexspec.codegen.lowering import LoweringReport
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.cost import count_operators, model_cost
from flexspec.ir.graph import PassNote
from flexspec.models.load import load_model

CONTEXTS = (1, 1024)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A model before and after the passes.

    Attributes:
        model: its name.
        operators_before: calls of each operator in the captured graph, of one pass.
        operators_after: calls of each operator in the graph that is given to code generation.
        blocks: distinct blocks that the layers were outlined to.
        passes: what each matched, in order.
        parameters: numbers in the weights, a tied weight counted once.
        weight_bytes: by dtype, as parameters of that dtype take them.
        kv_bytes_per_token: by dtype, over all layers, as the KV cache stores them.
        flops_per_token: by the number of tokens it sees.
        lowering: what runs each operator, and the memory of the weights as they are laid out.
    """

    model: str
    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    blocks: int
    passes: Sequence[PassNote]
    parameters: int
    weight_bytes: Mapping[str, int]
    kv_bytes_per_token: Mapping[str, int]
    flops_per_token: Mapping[int, int]
    lowering: LoweringReport


def inspect_model(model: str | os.PathLike[str] | nn.Module, *, dtype: str = "bfloat16", device: str | None = None) -> Inspection:
    """Capture a model, run the passes and generate code, and report on each.

    Args:
        model: as `flexspec.compile` takes it.
        dtype: what code is generated for, as `flexspec.compile` takes it.
        device: likewise.

    Raises:
        UsageError: if the model can't be loaded or compiled, or the dtype or the device is unknown.
    """
    place = find_device(device)
    chosen_dtype = find_dtype(dtype, place)
    loaded = load_model(model)
    graph = captured_graph(loaded)
    before = count_operators(graph.module)
    run_pipelines(graph)
    after, cost = count_operators(graph.module), model_cost(graph)
    blocks = {str(node.target) for node in graph.graph.find_nodes(op="call_module")}
    notes = tuple(graph.notes)
    compiled = generate_code(
        graph, dtype=chosen_dtype, max_positions=loaded.max_positions, buckets=(1,), store=WeightStore(), placement=Placement(device=place)
    )
    types: dict[str, torch.dtype] = {name: getattr(torch, name) for name in dtypes_of(place)}
    return Inspection(
        model=loaded.name,
        operators_before=dict(before),
        operators_after=dict(after),
        blocks=len(blocks),
        passes=notes,
        parameters=cost.parameters,
        weight_bytes={name: cost.parameters * one.itemsize for name, one in types.items()},
        kv_bytes_per_token={name: replace(compiled.kv_shape, dtype=one).bytes_per_slot for name, one in types.items()},
        flops_per_token={context: cost.flops_per_token(context) for context in CONTEXTS},
        lowering=compiled.lowering,
    )
