"""Logits only for the rows that are wanted: a row gather above the LM head."""

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, depends_on, infer, needed_for
from flexspec.ir.ops import COMBINE, REDUCE, REPARTITION, REPLICATE, RMS_NORM
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_ROW_WISE = {RMS_NORM, _aten.layer_norm.default, _aten.linear.default, COMBINE, REDUCE, REPARTITION, REPLICATE}


def output_rows(model: ModelGraph) -> tuple[int, int]:
    """Insert the gather `x[output_rows]` above the final norm and LM head, as far up as the rows stay independent.

    Hidden states keep the rows of all tokens, and so does what they are computed from.

    Returns:
        Gathers inserted, and 1.
    """
    for_all_tokens = needed_for(model.hidden_states)
    value = _highest(model, for_all_tokens)
    last_input = model.graph.find_nodes(op="placeholder")[-1]
    with model.graph.inserting_after(last_input):
        rows = model.graph.placeholder("output_rows")
    with model.fake_mode:
        rows.meta["val"] = torch.empty((2,), dtype=torch.int32)
    gather = model.emit(_aten.index_select.default, (value, 0, rows), before=value.next)
    if value is model.logits:
        model.set_logits(gather)
    kept = {gather, model.graph.output_node(), *for_all_tokens}
    value.replace_all_uses_with(gather, delete_user_cb=lambda user: user not in kept)
    _refresh(model, gather)
    model.finish()
    return 1, 1


def _highest(model: ModelGraph, for_all_tokens: set[fx.Node]) -> fx.Node:
    """The value from which row-wise operators alone, with nothing else per token, lead to the logits."""
    value = model.logits
    while value not in for_all_tokens and (value.target in _ROW_WISE or torch.Tag.pointwise in getattr(value.target, "tags", ())):
        sources = [arg for arg in value.all_input_nodes if not is_parameter(arg)]
        if len(sources) != 1:
            break
        value = sources[0]
    return value


def _refresh(model: ModelGraph, start: fx.Node) -> None:
    below = depends_on(model.graph, [start])
    for node in model.graph.nodes:
        if node in below and node is not start and node.op == "call_function":
            infer(node, model.fake_mode)
