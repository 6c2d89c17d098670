"""`flexspec::routed_experts`: the experts of a layer, each on the tokens that a router sends it (Shazeer et al., 2017)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from flexspec.ir.graph import fake
from flexspec.ir.ops.gated_activation import ACTIVATIONS, gated_activation
from flexspec.ir.ops.library import define
from flexspec.ir.ops.partition_rules import divides, values_of, weights_of
from flexspec.ir.partition import PARTIAL, REPLICATED, Partitioning

CLAMPED_SWISH = "clamped_swish"


def clamped_swish(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + 1), after gate was limited from above and up from both sides (GPT-OSS)."""
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def _gated(activation: str) -> Callable[..., Tensor]:
    return lambda gate, up: gated_activation(gate, up, activation)


EXPERT_GATES: dict[str, Callable[..., Tensor]] = {name: _gated(name) for name in ACTIVATIONS} | {CLAMPED_SWISH: clamped_swish}
"""What an expert makes of its gate and up projections, by name: functions of both, and of the operator's `constants`."""


def _reference(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    gate: Tensor,
    gate_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    constants: Sequence[float],
) -> Tensor:
    """Each expert that any token has runs on all tokens: products of one size, whatever tokens it has, round alike."""

    def project(rows: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        return F.linear(rows, weight[expert].to(rows.dtype), None if bias is None else bias[expert].to(rows.dtype))

    result = torch.zeros_like(x)
    for expert in sorted(set(expert_ids.flatten().tolist())):
        inner = EXPERT_GATES[activation](project(x, gate, gate_bias, expert), project(x, up, up_bias, expert), *constants)
        out = project(inner, down, down_bias, expert)
        chosen = expert_ids == expert  # [..., top_k]; a token has an expert at most once
        share = (expert_weights * chosen).sum(dim=-1, keepdim=True).to(x.dtype)
        result = torch.where(chosen.any(dim=-1, keepdim=True), result + out * share, result)
    return result


def _fake(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(x.shape)


def _partitionings(node: fx.Node, units: int) -> list[Partitioning]:
    """Each expert as a gated MLP: gate and up by columns, down by the same ones as rows; every device adds to the result."""
    gate, up, down = (arg for arg in (node.args[3], node.args[5], node.args[7]) if isinstance(arg, fx.Node))
    weights = weights_of(node)
    if len(values_of(node)) != 3 or not {gate, up, down} <= {*weights} or fake(node).dim() != 2 or not divides(units, fake(gate).shape[1]):
        return []
    dims = zip(node.args[3:9], (1, 1, 1, 1, 2, -1), strict=True)
    return [
        Partitioning(
            name=f"inner:{units}",
            inputs=(REPLICATED,) * 3,
            weights=tuple(dim for arg, dim in dims if arg is not None),
            result=PARTIAL,
            inside=units,
        )
    ]


# x: [..., hidden]; expert_ids (int64) and expert_weights: [..., top_k], a token's experts, each at most once, and their shares of the
# sum; gate and up: [experts, inner, hidden], down: [experts, hidden, inner], in any order in memory; the biases: [experts, inner] and
# [experts, hidden]. activation: a key of EXPERT_GATES; constants: what it takes besides. Result as x.
ROUTED_EXPERTS = define(
    "routed_experts(Tensor x, Tensor expert_ids, Tensor expert_weights, Tensor gate, Tensor? gate_bias, Tensor up, Tensor? up_bias, "
    "Tensor down, Tensor? down_bias, str activation, float[] constants) -> Tensor",
    reference=_reference,
    fake=_fake,
    partitionings=_partitionings,
)
