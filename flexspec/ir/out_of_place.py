"""Operators that change a value in place, in a traced graph, become ones that give a new value."""

import operator
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_EMPTY = {_aten.empty.memory_format, _aten.new_empty.default, _aten.empty_like.default}
# Their schemas promise a new value, and yet they may give what they were given.
_MAY_ALIAS = {_aten.dropout.default, _aten.alpha_dropout.default, _aten.feature_dropout.default, _aten.type_as.default}


def make_out_of_place(graph: fx.Graph) -> None:
    """Rewrite `x.op_(…)` to `x = x.op(…)` where the graph made x itself and nothing saw it through a view before.

    So does memory that slices are copied into one by one, if they make up all of it. What changes inputs, parameters, or memory that
    another value sees too, is left as it is.
    """
    for node in list(graph.nodes):
        if node.target in _EMPTY:
            _join_copies(graph, node)
    for node in list(graph.nodes):
        twin = _twin(node.target)
        changed = node.args[0] if node.args else None
        if twin is None or not isinstance(changed, fx.Node) or not _is_own(changed, node) or not _gives_alike(node, twin):
            continue
        node.target = twin
        later = _following(node)
        changed.replace_all_uses_with(node, delete_user_cb=later.__contains__)


def _join_copies(graph: fx.Graph, memory: fx.Node) -> None:
    """memory[..., a:b].copy_(x), memory[..., b:c].copy_(y) → cat(x, y), if that is all that is done before it is read."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    users = sorted(memory.users, key=order.__getitem__)
    copies = [found for found in map(_copied_into, users) if found is not None]
    reads = users[len(copies) :]
    if not copies or any(_copied_into(user) is not None for user in reads) or len({dim for dim, *_ in copies}) != 1:
        return
    copies.sort(key=lambda one: one[1])
    dim = copies[0][0]
    ends = [0, *(end for _, _, end, _ in copies)]
    last = max((copy for *_, copy in copies), key=order.__getitem__)
    is_whole = [start for _, start, _, _ in copies] == ends[:-1] and ends[-1] == memory.meta["val"].shape[dim]
    if not is_whole or any(order[read] < order[last] for read in reads):
        return
    with graph.inserting_after(last):
        joined = graph.call_function(_aten.cat.default, ([copy.args[1] for *_, copy in copies], dim))
    joined.meta["val"] = memory.meta["val"]
    for read in reads:
        read.replace_input_with(memory, joined)
    for *_, copy in copies:
        part = copy.all_input_nodes[0]
        graph.erase_node(copy)
        graph.erase_node(part)
    graph.erase_node(memory)


def _copied_into(part: fx.Node) -> tuple[int, int, int, fx.Node] | None:
    """Dim, start and end of a slice that exists to be copied into, by values of its own shape and type, and that copy."""
    if part.target != _aten.slice.Tensor or len(part.users) != 1 or len(part.args) > 4:
        return None
    (copy,) = part.users
    if copy.target != _aten.copy_.default or copy.users or copy.args[0] is not part:
        return None
    given: Any = part.args
    whole, dim, start, end = (*given, None, None)[:4]
    size, values = whole.meta["val"].shape[dim], copy.all_input_nodes[1].meta["val"]
    if not isinstance(size, int) or values.shape != part.meta["val"].shape or values.dtype != part.meta["val"].dtype:
        return None
    return dim, start or 0, size if end is None else min(end, size), copy


def _twin(target: Any) -> Any:
    """The operator that gives what `target` leaves in its first argument, which is all it changes; None if there is none."""
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    name, arguments = target._schema.name.split("::")[1], target._schema.arguments
    writes = [argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write]
    packet = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None)
    if not name.endswith("_") or writes != [arguments[0].name] or packet is None:
        return None
    return getattr(packet, target._overloadname, None)


def _gives_alike(node: fx.Node, twin: Any) -> bool:
    """Whether the result has the type and shape that the value keeps when it is changed in place."""
    given: Any = fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    args, kwargs = given
    with args[0].fake_mode:
        result = twin(*args, **kwargs)
    return bool(result.dtype == args[0].dtype and result.shape == args[0].shape)


def _is_own(value: fx.Node, until: fx.Node) -> bool:
    """Whether a value has memory of its own that nothing before `until` reads through a view."""
    source = value.args[0] if value.target == operator.getitem else value
    later = _following(until)
    return (
        isinstance(source, fx.Node)
        and source.op == "call_function"
        and not _may_alias(source)
        and not any(_may_alias(user) for user in value.users if user is not until and user not in later)
    )


def _may_alias(node: fx.Node) -> bool:
    """Whether a call may give what it was given, or a view of it."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return node.target in _MAY_ALIAS or any(one.alias_info is not None for one in node.target._schema.returns)


def _following(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    following = node.next
    while following.op != "root":
        found.add(following)
        following = following.next
    return found
