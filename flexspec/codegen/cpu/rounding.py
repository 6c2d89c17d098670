"""Where the float32 values of positions meet those of tokens in a graph that PyTorch runs in another dtype."""

from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph
from flexspec.ir.positions import position_values


def round_to(model: ModelGraph, dtype: torch.dtype) -> None:
    """Let point-wise operators that read float32 values, of positions or constants, give results in `dtype`.

    PyTorch would go on in float32.
    """
    if dtype != torch.float32:
        _round(model.module, {node for node in position_values(model)[1] if _is_float32(node)}, dtype)


def _is_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _round(module: fx.GraphModule, exact: set[fx.Node], dtype: torch.dtype) -> None:
    done: set[Any] = set()
    for node in list(module.graph.nodes):
        if not exact.intersection(node.all_input_nodes):
            continue
        if node.op == "call_module":
            if node.target not in done:  # a block's layers read the same values
                done.add(node.target)
                block: Any = module.get_submodule(str(node.target))
                inputs = zip(block.graph.find_nodes(op="placeholder"), node.args, strict=True)
                _round(block, {inner for inner, given in inputs if given in exact}, dtype)
        elif node not in exact and torch.Tag.pointwise in getattr(node.target, "tags", ()) and _is_float32(node):
            with module.graph.inserting_after(node):
                rounded = module.graph.call_function(torch.ops.aten.to.dtype, (node, dtype))
            node.replace_all_uses_with(rounded, delete_user_cb=lambda user, own=rounded: user is not own)
    module.recompile()
