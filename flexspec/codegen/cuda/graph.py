"""A graph of the serving pipeline, rewritten for a GPU: attention becomes two kernels, point-wise operators become PyTorch's."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from flexspec.codegen.cuda.operators import rope_write_op, tree_attention_op
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import COMBINE, GATED_ACTIVATION, PACKED_LINEAR, REDUCE, REPARTITION, REPLICATE, RMS_NORM, TREE_ATTENTION, parallel
from flexspec.ir.ops.gated_activation import gated_activation
from flexspec.ir.ops.rms_norm import rms_norm
from flexspec.ir.positions import position_values
from flexspec.ir.slopes import slopes_of

_aten = torch.ops.aten
_ROPE_WRITE: Any = torch.ops.flexspec_gpu.rope_write.default
_TREE_ATTENTION: Any = torch.ops.flexspec_gpu.tree_attention.default
assert rope_write_op is not None and tree_attention_op is not None  # registered by that import

_BY_REFERENCE = "by_reference"
_WRITTEN = "slots request_rows block_tables block_size"
_SEEN = "positions context_lens slots tail_starts tail_bits block_tables block_size"
_ARGUMENTS = tuple(arg.name for arg in TREE_ATTENTION._schema.arguments)

# Inputs that the rewritten graph has besides those of the serving pipeline.
PLAN = ("tiles", "block_tokens", "num_splits")
# Of an 8-bit cache, [layers, kv_heads] float32: what is stored, times these, is the key or value.
_SCALES = ("k_scales", "v_scales")

# What a compiler of point-wise operators should see through; collectives become functional ones, which compile and are captured.
_TRANSPARENT = {
    RMS_NORM: rms_norm,
    GATED_ACTIVATION: gated_activation,
    PACKED_LINEAR: _aten.linear.default,
    REPARTITION: parallel.repartition,
    COMBINE: parallel.combine,
    REDUCE: parallel.reduce,
    REPLICATE: parallel.replicate,
}


def split_attention(model: ModelGraph, *, has_scales: bool = False, by_reference: bool = False) -> int:
    """Turn each `flexspec::tree_attention` into `rope_write` and `tree_attention` of its layer's part of the cache.

    The graph gets three more inputs, those of `PLAN`; blocks no longer take their layer's number, so that one
    compilation serves all layers.

    Args:
        model: the graph.
        has_scales: whether the cache is an 8-bit one. Its scales are 1, as servers have them without calibrated ones: keys and values
            of a trained model lie between what 8-bit floats hold with full precision, 0.016 and 240 or 448.
        by_reference: whether the kernels' references run in their place, on a GPU too.

    Returns:
        How many attentions there were, those of a block counted once.
    """
    outer = model.graph
    plan = _add_inputs(outer, PLAN)
    scales = _add_scales(model) if has_scales else {}
    count = 0
    for name, block in list(model.module.named_children()):
        if isinstance(block, fx.GraphModule):
            count += _split_in_block(block, tuple(scales))
            for call in outer.find_nodes(op="call_module", target=name):
                _pass_layer(outer, call, block, plan, scales)
    for node in outer.find_nodes(op="call_function", target=TREE_ATTENTION):
        given = dict(zip(_ARGUMENTS, node.args, strict=True))
        with outer.inserting_before(node):
            cache = {
                name: outer.call_function(_aten.select.int, (value, 0, given["layer"]))
                for name, value in {"keys": given["keys"], "values": given["values"], **scales}.items()
            }
        _split(outer, node, cache=cache, plan=plan)
        count += 1
    if by_reference:
        _mark(model)
    model.module.recompile()
    return count


def runs_reference(node: fx.Node) -> bool:
    """Whether a call of a kernel was marked to run its reference."""
    return bool(node.kwargs.get(_BY_REFERENCE))


def make_transparent(model: ModelGraph) -> None:
    """Replace dialect operators that are point-wise, or linear, by PyTorch's own, which `torch.compile` fuses."""
    for module in [module for module in model.module.modules() if isinstance(module, fx.GraphModule)]:
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target in _TRANSPARENT:
                node.target = _TRANSPARENT[node.target]
        module.recompile()


def move_weights(model: ModelGraph, store: WeightStore, *, dtype: torch.dtype, device: torch.device) -> int:
    """Bring every parameter to the device and into the model's dtype, constants of positions and slopes to the device only.

    Returns:
        Bytes of the weights that were not in `store` before.
    """
    constants = {arg for node in position_values(model)[0] for arg in node.all_input_nodes if node.target != _aten.embedding.default}
    constants |= slopes_of(model)
    total = 0
    for node in model.graph.find_nodes(op="get_attr"):
        value = model.parameter(node).detach()
        kept = value.dtype if node in constants or node.target in _SCALES or not value.is_floating_point() else dtype
        key = ("gpu", str(device), kept, model.origin(node))
        moved = store.get(key)
        if moved is None:
            moved = value.to(device=device, dtype=kept, copy=True)
            store.put(key, moved)
            total += moved.nbytes
        assert isinstance(moved, torch.Tensor)
        # The module that was given may be trained on or changed, so the graph gets a value of its own.
        delattr(model.module, str(node.target))
        setattr(model.module, str(node.target), moved)
    return total


def _mark(model: ModelGraph) -> None:
    for module in [module for module in model.module.modules() if isinstance(module, fx.GraphModule)]:
        for target in (_ROPE_WRITE, _TREE_ATTENTION):
            for node in module.graph.find_nodes(op="call_function", target=target):
                node.kwargs = {_BY_REFERENCE: True}
        module.recompile()


def _add_scales(model: ModelGraph) -> dict[str, fx.Node]:
    """Scales of 1, as parameters."""
    layers, _, kv_heads, _ = (int(dim) for dim in fake(model.placeholder("keys")).shape)
    first = next(node for node in model.graph.nodes if node.op != "placeholder")
    ones = torch.ones(layers, kv_heads)
    return {name: model.add_parameter(name, ones.clone(), first, (name, layers, kv_heads)) for name in _SCALES}


def _split_in_block(block: fx.GraphModule, scales: Sequence[str]) -> int:
    """The block's last inputs become those of `PLAN`, and its layer's scales, instead of the layer's number; its cache inputs are one
    layer's."""
    graph = block.graph
    layer = graph.find_nodes(op="placeholder")[-1]
    added = _add_inputs(graph, (*PLAN, *scales))
    attentions = graph.find_nodes(op="call_function", target=TREE_ATTENTION)
    for node in attentions:
        given = dict(zip(_ARGUMENTS, node.args, strict=True))
        cache = {"keys": given["keys"], "values": given["values"], **{name: added[name] for name in scales}}
        _split(graph, node, cache=cache, plan=added)
    graph.erase_node(layer)
    block.recompile()
    return len(attentions)


def _pass_layer(outer: fx.Graph, call: fx.Node, block: fx.GraphModule, plan: Mapping[str, fx.Node], scales: Mapping[str, fx.Node]) -> None:
    """Give a call of a block its layer's part of the cache instead of the cache and the layer's number."""
    *inputs, layer = call.args
    cached = {arg for node in block.graph.find_nodes(op="call_function", target=_ROPE_WRITE) for arg in node.args[5:7]}
    names = block.graph.find_nodes(op="placeholder")
    with outer.inserting_before(call):
        given = [
            outer.call_function(_aten.select.int, (value, 0, layer)) if name in cached else value
            for name, value in zip(names, inputs, strict=False)
        ]
        own_scales = [outer.call_function(_aten.select.int, (value, 0, layer)) for value in scales.values()]
    call.args = (*given, *plan.values(), *own_scales)


def _split(graph: fx.Graph, node: fx.Node, *, cache: Mapping[str, Any], plan: Mapping[str, fx.Node]) -> None:
    given = dict(zip(_ARGUMENTS, node.args, strict=True))
    stored = (cache["keys"], cache["values"])
    scales = tuple(cache[name] for name in _SCALES if name in cache)
    written_as = (*_pick(given, "interleaved"), *scales)
    with graph.inserting_before(node):
        rotated = graph.call_function(_ROPE_WRITE, (*_pick(given, "q k v cos sin"), *stored, *_pick(given, _WRITTEN), *written_as))
        seen = (*_pick(given, _SEEN), *_pick(plan, "block_tokens num_splits"), *_pick(given, "scale window softcap sinks slopes"))
        out = graph.call_function(_TREE_ATTENTION, (rotated, *stored, plan["tiles"], *seen, *scales))
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _add_inputs(graph: fx.Graph, names: Sequence[str]) -> dict[str, fx.Node]:
    """Inputs behind the last one."""
    added: dict[str, fx.Node] = {}
    anchor = graph.find_nodes(op="placeholder")[-1]
    for name in names:
        with graph.inserting_after(anchor):
            anchor = added[name] = graph.placeholder(name)
    return added


def _pick(given: Mapping[str, Any], names: str) -> tuple[Any, ...]:
    return tuple(given[name] for name in names.split())
