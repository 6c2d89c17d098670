"""Verification of a graph against a table of what each operator accepts.

A failure here is a bug in a pass, never a user's mistake: it raises `GraphError`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from flexspec.ir.cost import all_calls
from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.ir.ops import (
    ACTIVATIONS,
    ATTENTION,
    COMBINE,
    GATED_ACTIVATION,
    PACKED_LINEAR,
    REDUCE,
    REPARTITION,
    RMS_NORM,
    ROPE,
    ROUTED_EXPERTS,
    TOP_EXPERTS,
    TREE_ATTENTION,
)
from flexspec.ir.ops.routed_experts import EXPERT_GATES

_aten = torch.ops.aten


class GraphError(Exception):
    """A graph breaks a rule of the IR; the message names the node and the rule."""


@dataclass(frozen=True)
class Rule:
    """What must hold for every call of an operator.

    Attributes:
        says: the rule in words.
        holds: whether a call keeps it.
    """

    says: str
    holds: Callable[[fx.Node], bool]


def _shape(node: Any) -> list[Any]:
    return list(fake(node).shape)


def _heads_fit(node: fx.Node) -> bool:
    q, k, v = (_shape(arg) for arg in node.args[:3])
    return k[:-1] == v[:-1] and q[-1] == k[-1] and q[-2] % k[-2] == 0


def _linear_fits(node: fx.Node) -> bool:
    x, weight, bias = (*node.args, None)[:3]
    return len(_shape(weight)) == 2 and _shape(x)[-1] == _shape(weight)[1] and (bias is None or _shape(bias) == _shape(weight)[:1])


def _columns_exist(node: fx.Node) -> bool:
    x, start, length = node.args
    assert isinstance(start, int) and isinstance(length, int)
    columns: int = _shape(x)[1]
    return 0 <= start < start + length <= columns


def _one_rank_s(node: fx.Node) -> bool:
    x, widths, _ = node.args
    assert isinstance(widths, list | tuple)
    return _shape(x)[1] in widths


def _one_row_each(node: fx.Node) -> bool:
    x, ids, weights = node.args[:3]
    return _shape(ids) == _shape(weights) and _shape(x)[:-1] == _shape(ids)[:-1] and fake(ids).dtype == torch.int64


def _experts_fit(node: fx.Node) -> bool:
    x, _, _, gate, gate_bias, up, up_bias, down, down_bias, _, _ = node.args
    if len(_shape(down)) != 3:
        return False
    experts, hidden, inner = _shape(down)
    return (
        _shape(gate) == _shape(up) == [experts, inner, hidden]
        and _shape(x)[-1] == hidden
        and all(bias is None or _shape(bias) == [experts, inner] for bias in (gate_bias, up_bias))
        and (down_bias is None or _shape(down_bias) == [experts, hidden])
    )


_LINEAR = Rule("weight is [out, in], x ends in `in`, bias is [out]", _linear_fits)

RULES: dict[Any, tuple[Rule, ...]] = {
    ATTENTION: (
        Rule("q, k, v are [..., tokens, heads, head_dim]", lambda n: all(len(_shape(arg)) in (3, 4) for arg in n.args[:3])),
        Rule("query heads are a multiple of KV heads, head sizes agree", _heads_fit),
    ),
    RMS_NORM: (Rule("weight is [last dim of x]", lambda n: _shape(n.args[1]) == _shape(n.args[0])[-1:]),),
    ROPE: (
        Rule("x is [tokens, heads, head_dim]", lambda n: len(_shape(n.args[0])) == 3),
        Rule(
            "cos and sin are alike, [tokens, rotary_dim]", lambda n: len(_shape(n.args[1])) == 2 and _shape(n.args[1]) == _shape(n.args[2])
        ),
        Rule(
            "rotary_dim is even and at most head_dim",
            lambda n: _shape(n.args[1])[1] % 2 == 0 and _shape(n.args[1])[1] <= _shape(n.args[0])[2],
        ),
    ),
    GATED_ACTIVATION: (
        Rule("gate and up are alike", lambda n: _shape(n.args[0]) == _shape(n.args[1])),
        Rule("the activation is known", lambda n: n.args[2] in ACTIVATIONS),
    ),
    ROUTED_EXPERTS: (
        Rule("ids are integers, with a weight each, and x has a row for theirs", _one_row_each),
        Rule("gate and up are [experts, inner, hidden], down is [experts, hidden, inner], biases fit", _experts_fit),
        Rule("the activation is known", lambda n: n.args[9] in EXPERT_GATES),
    ),
    PACKED_LINEAR: (_LINEAR,),
    _aten.linear.default: (_LINEAR,),
    TREE_ATTENTION: (
        Rule("q, k, v are [tokens, heads, head_dim]", lambda n: all(len(_shape(arg)) == 3 for arg in n.args[:3])),
        Rule("query heads are a multiple of KV heads, head sizes agree", _heads_fit),
        Rule("cos and sin come together", lambda n: (n.args[3] is None) == (n.args[4] is None)),
    ),
    REPARTITION: (Rule("a rank keeps some columns of x", _columns_exist),),
    COMBINE: (Rule("x has the columns of one of the ranks", _one_rank_s),),
    REDUCE: (Rule("there are other ranks", lambda n: isinstance(n.args[1], int) and n.args[1] > 1),),
}

# Operators that a stage of the pipeline leaves none of.
ABSENT: dict[str, frozenset[Any]] = {
    "captured": frozenset({TREE_ATTENTION, PACKED_LINEAR, ROPE, RMS_NORM, GATED_ACTIVATION, TOP_EXPERTS}),
    "recognised": frozenset({TREE_ATTENTION, PACKED_LINEAR, _aten.addmm.default, _aten.transpose.int}),
    "serving": frozenset({ATTENTION, ROPE, _aten.linear.default, _aten.addmm.default}),
}


def verify(model: ModelGraph, stage: str | None = None) -> None:
    """Check every operator call against `RULES`, the hidden states' shapes, and that nothing is left that `stage` should have removed.

    Args:
        model: the graph.
        stage: `captured`, `recognised` or `serving`; None between stages.

    Raises:
        GraphError: naming the first node that breaks a rule.
    """
    model.graph.lint()
    for state in model.hidden_states:
        if _shape(state)[:-1] != _shape(model.placeholder("token_ids")):
            raise GraphError(f"{state.name}: a hidden state must have a row for each token, but its shape is {_shape(state)}")
    absent = ABSENT[stage] if stage is not None else frozenset()
    for node in all_calls(model.module):
        if node.target in absent:
            raise GraphError(f"{node.name}: {node.target} is left at stage {stage}")
        if "val" not in node.meta:
            raise GraphError(f"{node.name}: no fake result")
        if not is_tensor(node):
            continue
        for rule in RULES.get(node.target, ()):
            if not rule.holds(node):
                raise GraphError(f"{node.name}: {node.target} breaks the rule that {rule.says}")
