"""A plan applied to a graph: the pipeline stage and the share of it that one rank runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, PassNote, fake
from flexspec.ir.ops import ATTENTION
from flexspec.ir.ops.partitionings import partitionings
from flexspec.ir.partition import Partitioning
from flexspec.parallel import ParallelPlan
from flexspec.passes.blocks import Blocks, find_blocks, fingerprint
from flexspec.passes.shard import Share, shard
from flexspec.passes.stages import StatePlace, cut_stage, stage_bounds, whole_states
from flexspec.passes.tokenwise import largest_position


@dataclass(frozen=True, kw_only=True)
class Division:
    """What became of a whole graph.

    Attributes:
        state_places: for each hidden state that was asked for, in that order, where it now comes from.
        max_positions: positions that the whole graph can tell apart by its learned embeddings; None without any.
    """

    state_places: Sequence[StatePlace]
    max_positions: int | None


def is_divided(plan: ParallelPlan) -> bool:
    """Whether a rank runs less than the whole model."""
    return plan.pp > 1 or plan.tp > 1


def divide(model: ModelGraph, plan: ParallelPlan, *, stage: int, share: Share) -> Division:
    """Cut the flat recognised graph down, in place, to what one rank runs.

    Args:
        model: the graph.
        plan: how the model is divided.
        stage: the rank's pipeline stage.
        share: its part of that stage.

    Raises:
        UsageError: if the plan is not for this model.
    """
    assert 0 <= stage < plan.pp and 0 <= share.rank < share.size == plan.tp
    max_positions = largest_position(model)
    if not is_divided(plan) and not plan.model:
        return Division(state_places=whole_states(model), max_positions=max_positions)
    blocks = find_blocks(model)
    if plan.model not in ("", made_for := fingerprint(blocks)):
        raise UsageError(
            f"this plan is for another model: its model={plan.model!r} is not the fingerprint of {model.facts.name}, {made_for!r}; "
            "search one for this model"
        )
    if not is_divided(plan):
        return Division(state_places=whole_states(model), max_positions=max_positions)
    bounds = stage_bounds(model.facts.name, len(blocks.layers), plan.stage_layers, plan.pp)
    chosen = _chosen(model.facts.name, blocks, plan.partition) if plan.tp > 1 else {}
    places = cut_stage(model, [layer.nodes for layer in blocks.layers], bounds, stage)
    if plan.tp > 1:
        inserted = shard(model, chosen, share)
        model.notes.append(PassNote(name="shard", matches=inserted, expected=0))
        _check_attention(model)
    return Division(state_places=places, max_positions=max_positions)


def _chosen(name: str, blocks: Blocks, partition: Mapping[str, Sequence[str]]) -> dict[fx.Node, Partitioning]:
    """How each operator is divided; those in places that the plan doesn't name are not."""
    places: list[tuple[str, Sequence[fx.Node]]] = [("embedding", blocks.prologue), ("head", blocks.epilogue)]
    places += [(layer.kind, layer.nodes) for layer in blocks.layers]
    unknown = sorted(partition.keys() - {place for place, _ in places})
    if unknown:
        known = sorted({place for place, _ in places})
        raise UsageError(f"partition[{unknown[0]!r}] is for no place of model {name}, which has {', '.join(known)}: make a plan for it")
    chosen: dict[fx.Node, Partitioning] = {}
    for place, nodes in places:
        names = partition.get(place, ())
        if names and len(names) != len(nodes):
            raise UsageError(
                f"partition[{place!r}] has {len(names)} names, but {place} of model {name} has {len(nodes)} operators: make a plan for it"
            )
        chosen |= {node: _named(node, one, place) for node, one in zip(nodes, names, strict=False)}
    return chosen


def _named(node: fx.Node, wanted: str, place: str) -> Partitioning:
    _, _, units = wanted.partition(":")
    offered = {one.name: one for one in partitionings(node, [int(units)] if units.isdigit() and int(units) else [])}
    if wanted not in offered:
        raise UsageError(
            f"partition[{place!r}] divides {node.target} as {wanted!r}, which is not allowed: give one of {', '.join(sorted(offered))}"
        )
    return offered[wanted]


def _check_attention(model: ModelGraph) -> None:
    heads = {int(fake(node.args[1]).shape[-2]) for node in model.nodes(ATTENTION)}
    if len(heads) > 1:
        raise UsageError(
            f"partition divides the attention of model {model.facts.name} differently in different blocks: one KV cache holds "
            f"{' or '.join(map(str, sorted(heads)))} heads a layer; give all kinds of blocks the same"
        )
