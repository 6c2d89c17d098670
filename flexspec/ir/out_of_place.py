"""Operators that change a value in place, in a traced graph, become ones that give a new value."""

import operator
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
# Their schemas promise a new value, and yet they may give what they were given.
_MAY_ALIAS = {_aten.dropout.default, _aten.alpha_dropout.default, _aten.feature_dropout.default, _aten.type_as.default}


def make_out_of_place(graph: fx.Graph) -> None:
    """Rewrite `x.op_(…)` to `x = x.op(…)` where the graph made x itself and nothing saw it through a view before.

    What changes inputs, parameters, or memory that another value sees too, is left as it is.
    """
    for node in list(graph.nodes):
        twin = _twin(node.target)
        changed = node.args[0] if node.args else None
        if twin is None or not isinstance(changed, fx.Node) or not _is_own(changed, node) or not _gives_alike(node, twin):
            continue
        node.target = twin
        later = _following(node)
        changed.replace_all_uses_with(node, delete_user_cb=later.__contains__)


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
