"""Values of positions that are computed again and again, such as rotary tables in each layer, become one."""

from typing import Any

from torch import fx

from flexspec.ir.graph import ModelGraph
from flexspec.ir.positions import position_values


def share_position_values(model: ModelGraph) -> int:
    """Calls of the same operator with the same arguments → the first of them, among those computed from positions and constants alone.

    Returns:
        How many nodes went.
    """
    first: dict[Any, fx.Node] = {}
    removed = 0
    for node in position_values(model)[0]:
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        if first.setdefault(key, node) is not node:
            node.replace_all_uses_with(first[key])
            model.graph.erase_node(node)
            removed += 1
    model.finish()
    return removed


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    return type(value), value
