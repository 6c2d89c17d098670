"""Pipeline stages: a graph is cut down to some of its layers, which hand the residual stream on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, depends_on, fake
from flexspec.ir.partition import shares


@dataclass(frozen=True, kw_only=True)
class StatePlace:
    """Where a hidden state comes from.

    Attributes:
        stage: the pipeline stage that gives it.
        size: its columns.
    """

    stage: int
    size: int


def whole_states(model: ModelGraph) -> list[StatePlace]:
    """Where the hidden states of a graph of a single stage come from."""
    return [StatePlace(stage=0, size=int(fake(state).shape[-1])) for state in model.hidden_states]


def stage_bounds(name: str, num_layers: int, stage_layers: Sequence[int], pp: int) -> list[tuple[int, int]]:
    """The first layer of each stage, and the one after its last.

    Args:
        name: what the user calls the model.
        num_layers: of the model.
        stage_layers: layers of each stage; () divides them evenly.
        pp: stages.

    Raises:
        UsageError: if these are not the layers of the model.
    """
    if pp > num_layers:
        raise UsageError(f"pp={pp} is not allowed: model {name} has {num_layers} layers, so give at most {num_layers} stages")
    counts = tuple(stage_layers) or shares(num_layers, pp)
    if sum(counts) != num_layers:
        raise UsageError(
            f"stage_layers={list(counts)} makes {sum(counts)} layers, but model {name} has {num_layers}: this plan is for another model"
        )
    return [(sum(counts[:stage]), sum(counts[: stage + 1])) for stage in range(len(counts))]


def cut_stage(model: ModelGraph, layers: Sequence[Sequence[fx.Node]], bounds: Sequence[tuple[int, int]], stage: int) -> list[StatePlace]:
    """Cut the graph down to a stage, in place.

    A stage after the first takes the residual stream as its input `features`; one before the last gives it, a row for each token,
    instead of the logits. Hidden states are given by the stage that computes them.

    Args:
        model: the flat recognised graph.
        layers: its layers, nodes in graph order.
        bounds: as `stage_bounds` gives them.
        stage: which one to keep.

    Returns:
        For each hidden state that was asked for, in that order, where it now comes from.

    Raises:
        UsageError: if the model takes features itself.
    """
    if len(bounds) == 1:
        return whole_states(model)
    if model.feature_size:
        raise UsageError(f"model {model.facts.name} takes features, so it can't be cut into pipeline stages: give pp=1")
    first, end = bounds[stage]
    places = _state_places(model, layers, bounds)
    result = model.logits if end == len(layers) else _stream(model, layers, end)
    states = tuple(state for state, place in zip(model.hidden_states, places, strict=True) if place.stage == stage)
    if first:
        _read_features(model, layers, first)
    model.graph.output_node().args = ((result, *states) if states else result,)
    num_layers = None if model.facts.num_layers is None else end - first
    model.facts = replace(model.facts, num_layers=num_layers, patterns={})
    model.finish()
    return places


def _stream(model: ModelGraph, layers: Sequence[Sequence[fx.Node]], layer: int) -> fx.Node:
    """The residual stream that a layer reads: all that it needs of the tokens."""
    tokens = depends_on(model.graph, model.token_inputs)
    inside = set(layers[layer])
    (stream,) = {arg for node in layers[layer] for arg in node.all_input_nodes if arg in tokens and arg not in inside}
    return stream


def _read_features(model: ModelGraph, layers: Sequence[Sequence[fx.Node]], first: int) -> None:
    stream = _stream(model, layers, first)
    before = {node for nodes in layers[:first] for node in nodes}
    with model.graph.inserting_after(model.placeholder("position_ids")):
        features = model.graph.placeholder("features")
    features.meta["val"] = stream.meta["val"]
    stream.replace_all_uses_with(features, delete_user_cb=lambda user: user not in before and user.op != "output")


def _state_places(model: ModelGraph, layers: Sequence[Sequence[fx.Node]], bounds: Sequence[tuple[int, int]]) -> list[StatePlace]:
    stages = {node: stage for stage, (first, end) in enumerate(bounds) for nodes in layers[first:end] for node in nodes}
    order = list(model.graph.nodes)
    start = order.index(layers[0][0])

    def stage_of(state: fx.Node) -> int:
        outside = 0 if order.index(state) < start else len(bounds) - 1
        return stages.get(state, outside)

    return [StatePlace(stage=stage_of(state), size=int(fake(state).shape[-1])) for state in model.hidden_states]
