"""Attention over whole sequences → attention over KV slots and tree tails, the cache and the batch as graph inputs."""

import torch
from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION, ROPE, TREE_ATTENTION
from flexspec.passes.match import is_call

# The inputs that the pass adds to the graph, in the order of the operator's arguments, with their ranks.
BATCH_INPUTS = {
    "request_rows": 1,
    "slots": 1,
    "context_lens": 1,
    "tail_starts": 1,
    "tail_bits": 2,
    "block_tables": 2,
}
CACHE_INPUTS = ("keys", "values")


def lower_attention(model: ModelGraph) -> tuple[int, int]:
    """`flexspec::attention`, with the rotary embedding before it, → `flexspec::tree_attention`.

    Returns:
        Matches, and the number of layers in the model's config (of attentions, for a module without one).

    Raises:
        UsageError: if layers differ in their KV heads or head size, or rotary embeddings are partial or elsewhere.
    """
    attentions = model.nodes(ATTENTION)
    expected = len(attentions) if model.facts.num_layers is None else model.facts.num_layers
    shapes = {
        (int(fake(node.args[1]).shape[-2]), int(fake(node.args[1]).shape[-1]), int(fake(node.args[2]).shape[-1])) for node in attentions
    }
    if len(shapes) > 1 or any(k_dim != v_dim for _, k_dim, v_dim in shapes):
        raise UsageError(f"model {model.facts.name}: layers with unlike KV heads or head sizes {sorted(shapes)} are not supported")
    inputs = _add_inputs(model, len(attentions), *sorted(shapes)[0][:2]) if attentions else {}
    for layer, node in enumerate(attentions):
        _lower(model, node, layer, inputs)
    model.finish()
    if left := model.nodes(ROPE):
        raise UsageError(
            f"model {model.facts.name}: rotary embedding {left[0].name} is not over whole heads, alike for queries and keys, right before "
            "attention; this form of it is not supported"
        )
    return len(attentions), expected


def _add_inputs(model: ModelGraph, num_layers: int, kv_heads: int, head_dim: int) -> dict[str, fx.Node]:
    positions = model.placeholder("position_ids")
    inputs = {"positions": positions}
    anchor = positions
    mode = model.fake_mode
    for name in (*CACHE_INPUTS, *BATCH_INPUTS, "block_size"):
        with model.graph.inserting_after(anchor):
            anchor = model.graph.placeholder(name)
        inputs[name] = anchor
        with mode:
            if name in CACHE_INPUTS:
                anchor.meta["val"] = torch.empty((num_layers, 64, kv_heads, head_dim), dtype=torch.float32)
            elif name in BATCH_INPUTS:
                anchor.meta["val"] = torch.empty((2,) * BATCH_INPUTS[name], dtype=torch.int32)
            else:
                anchor.meta["val"] = 64
    return inputs


def _lower(model: ModelGraph, node: fx.Node, layer: int, inputs: dict[str, fx.Node]) -> None:
    q, k, v, scale, window, softcap, sinks, slopes = (*node.args, None)[:8]
    cos = sin = None
    interleaved = False
    if is_call(q, ROPE) and is_call(k, ROPE) and q.args[1:] == k.args[1:]:  # type: ignore[union-attr]
        (q, cos, sin, *pairing), k = q.args, k.args[0]  # type: ignore[union-attr]
        interleaved = bool(pairing and pairing[0])
    batch = [inputs[name] for name in ("keys", "values", "positions", *BATCH_INPUTS, "block_size")]
    lowered = model.emit(
        TREE_ATTENTION, (q, k, v, cos, sin, *batch, layer, scale, window, softcap, sinks, slopes, interleaved), before=node
    )
    node.replace_all_uses_with(lowered)
    model.graph.erase_node(node)
