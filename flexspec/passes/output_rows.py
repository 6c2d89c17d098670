"""Logits only for the rows that are wanted: a row gather above the LM head."""

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, depends_on, fake, infer
from flexspec.ir.ops import RMS_NORM, TREE_ATTENTION

_aten = torch.ops.aten
_ROW_WISE = {RMS_NORM, _aten.layer_norm.default, _aten.linear.default}


def output_rows(model: ModelGraph) -> tuple[int, int]:
    """Insert the gather `x[output_rows]` above the final norm and LM head, as far up as the rows stay independent.

    Returns:
        Gathers inserted, and 1.
    """
    logits = model.graph.output_node().args[0]
    assert isinstance(logits, fx.Node)
    tokens = depends_on(model.graph, [model.placeholder("token_ids")])
    top = _climb(logits, tokens)
    last_input = [node for node in model.graph.nodes if node.op == "placeholder"][-1]
    with model.graph.inserting_after(last_input):
        rows = model.graph.placeholder("output_rows")
    with model.fake_mode:
        rows.meta["val"] = torch.empty((2,), dtype=torch.int32)
    (source,) = [arg for arg in top.all_input_nodes if arg in tokens]
    gather = model.emit(_aten.index_select.default, (source, 0, rows), before=top)
    top.replace_input_with(source, gather)
    _refresh(model, gather)
    model.finish()
    return 1, 1


def _climb(logits: fx.Node, tokens: set[fx.Node]) -> fx.Node:
    """The highest operator of the single-input chain of row-wise operators that ends in the logits."""
    node = logits
    while True:
        sources = [arg for arg in node.all_input_nodes if arg in tokens]
        (source,) = sources
        alone = len(source.users) == 1 and source.target in _ROW_WISE
        if not alone or source.target == TREE_ATTENTION or fake(source).dim() != 2:
            return node
        node = source


def _refresh(model: ModelGraph, start: fx.Node) -> None:

    below = depends_on(model.graph, [start])
    for node in model.graph.nodes:
        if node in below and node is not start and node.op == "call_function":
            infer(node, model.fake_mode)
