"""Models divided over ranks that are threads of one process."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, fx

from flexspec.codegen.parallel_group import TorchGroup
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION, GATED_ACTIVATION, RMS_NORM, ROPE, ROUTED_EXPERTS
from flexspec.ir.ops.parallel import ordered_sum
from flexspec.ir.ops.partitionings import partitionings
from flexspec.ir.partition import PARTIAL, REPLICATED, Layout, Partitioning, sharded
from flexspec.parallel import ParallelPlan
from flexspec.passes.blocks import find_blocks

_aten = torch.ops.aten
_HEADS = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value")
_WIDE = ("gate_proj", "up_proj", "fc1", "c_fc", "h_to_4h")
_NARROW = ("o_proj", "out_proj", "down_proj", "fc2", "c_proj", "attention_dense", "4h_to_h")
_ROUTERS = ("mlp_gate_weight", "mlp_router")
_FOLLOWING = {
    RMS_NORM,
    _aten.reshape.default,
    _aten.relu.default,
    _aten.gelu.default,
    _aten.silu.default,
    ROPE,
    ATTENTION,
    GATED_ACTIVATION,
}
T = TypeVar("T")
MLP_UNITS = 8
"""Parts of an MLP, and of the vocabulary, that stay whole."""


class ThreadGroup:
    """One rank of a group whose ranks are threads; see `ParallelGroup`."""

    name = "threads"

    def __init__(self, rank: int, size: int, shared: list[Any], barrier: Barrier) -> None:
        self.rank, self.size = rank, size
        self._shared, self._barrier = shared, barrier

    def reduce(self, summand: Tensor) -> None:
        summand.copy_(ordered_sum(self._exchange(summand)))

    def combine(self, columns: Tensor, widths: Sequence[int], out: Tensor) -> None:
        parts = self._exchange(columns)
        assert [part.shape[1] for part in parts] == list(widths)
        out.copy_(torch.cat(parts, dim=1))

    def replicate(self, value: Tensor) -> None:
        value.copy_(self._exchange(value)[0])

    def _exchange(self, mine: Tensor) -> list[Tensor]:
        self._shared[self.rank] = mine.clone()
        self._barrier.wait(60)
        parts = list(self._shared)
        self._barrier.wait(60)
        assert len({len(part) for part in parts}) == 1, "ranks disagree about the rows of a pass"
        return parts


def thread_groups(size: int) -> list[ThreadGroup]:
    """The ranks of one group."""
    shared: list[Any] = [None] * size
    barrier = Barrier(size)
    return [ThreadGroup(rank, size, shared, barrier) for rank in range(size)]


_numbers = itertools.count()


def gloo_groups(size: int) -> list[TorchGroup]:
    """The ranks of one group that talk by gloo; functional collectives know each by a name of its own."""
    store, number = dist.HashStore(), next(_numbers)
    kind = dist.ProcessGroup.BackendType.GLOO

    def connected(rank: int) -> TorchGroup:
        group = dist.ProcessGroup(store, rank, size)
        group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(store, rank, size))
        group._set_default_backend(kind)
        group._set_group_name(f"threads_{number}_{rank}")
        torch._C._distributed_c10d._register_process_group(group.group_name, group)
        return TorchGroup(group)

    return on_ranks(size, connected)


def on_ranks(size: int, run: Callable[[int], T]) -> list[T]:
    """What `run(rank)` gives for each rank, all at once."""
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        return [future.result(60) for future in futures]


def column_then_row(model: ModelGraph) -> dict[fx.Node, Partitioning]:
    """The usual way to divide a flat recognised graph: attention by KV heads, MLPs, experts and vocabulary by columns."""
    chosen: dict[fx.Node, Partitioning] = {}
    layouts: dict[fx.Node, Layout] = {}
    kv_heads = int(fake(model.nodes(ATTENTION)[0].args[1]).shape[-2])
    for node in model.graph.nodes:
        values = [arg for arg in node.all_input_nodes if arg.op != "get_attr"]
        weights = [arg for arg in node.all_input_nodes if arg.op == "get_attr"]
        divided = next((layouts[value] for value in values if layouts.get(value, REPLICATED).units), None)
        if node.target == ROUTED_EXPERTS:
            chosen[node] = partitionings(node, [MLP_UNITS])[1]
        elif node.target == _aten.linear.default and not any(one in str(weights[0].target) for one in _ROUTERS):
            name = str(weights[0].target)
            if any(one in name for one in _NARROW):
                assert divided is not None
                chosen[node] = _how((divided,), (1, -1)[: len(weights)], PARTIAL)
                continue
            units = kv_heads if any(one in name for one in _HEADS) else MLP_UNITS
            assert units == kv_heads or "lm_head" in name or any(one in name for one in _WIDE)
            chosen[node] = _how((REPLICATED,), (0,) * len(weights), sharded(units))
        elif divided is not None and node.target in _FOLLOWING:
            per_head = (0 if node.target == ATTENTION else None,) * len(weights)
            chosen[node] = _how(tuple(layouts.get(value, REPLICATED) for value in values), per_head, divided)
        if node in chosen:
            layouts[node] = chosen[node].result
    return chosen


def _how(inputs: tuple[Layout, ...], weights: tuple[int | None, ...], result: Layout) -> Partitioning:
    return Partitioning(name="by hand", inputs=inputs, weights=weights, result=result)


def _name(node: fx.Node, how: Partitioning | None) -> str:
    """What a way to divide an operator is called in plans."""
    if how is None:
        return "replicated"
    return next(one.name for one in partitionings(node, [how.units]) if replace(one, name=how.name) == how)


def plan_of(model: ModelGraph, *, tp: int = 1, pp: int = 1, stage_layers: tuple[int, ...] = ()) -> ParallelPlan:
    """A plan that divides the model of a flat recognised graph as `column_then_row` does."""
    chosen, blocks = column_then_row(model), find_blocks(model)
    places = {"embedding": blocks.prologue, "head": blocks.epilogue} | {layer.kind: layer.nodes for layer in blocks.layers}
    names = {place: tuple(_name(node, chosen.get(node)) for node in nodes) for place, nodes in places.items()}
    return ParallelPlan(tp=tp, pp=pp, stage_layers=stage_layers, partition=names if tp > 1 else {})


def layers_of(model: ModelGraph) -> list[Sequence[fx.Node]]:
    """The nodes of each layer of a flat recognised graph."""
    return [layer.nodes for layer in find_blocks(model).layers]
