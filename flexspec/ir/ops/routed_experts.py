"""`flexspec::routed_experts`: the experts of a layer, each on the tokens that a router sends it (Shazeer et al., 2017)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from flexspec.ir.ops.gated_activation import ACTIVATIONS, gated_activation
from flexspec.ir.ops.library import define

CLAMPED_SWISH = "clamped_swish"


def clamped_swish(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + 1), after gate was limited from above and up from both sides (GPT-OSS)."""
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def _gated(activation: str) -> Callable[..., Tensor]:
    return lambda gate, up: gated_activation(gate, up, activation)


EXPERT_GATES: dict[str, Callable[..., Tensor]] = {name: _gated(name) for name in ACTIVATIONS} | {CLAMPED_SWISH: clamped_swish}
"""What an expert makes of its gate and up projections, by name: functions of both, and of the operator's `constants`."""


def halves(gate_up: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Gate and up of the last dim: its even and odd elements, or its first and second half."""
    if interleaved:
        return gate_up[..., ::2], gate_up[..., 1::2]
    gate, up = gate_up.chunk(2, dim=-1)
    return gate, up


def _reference(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    constants: Sequence[float],
    transposed: bool,
    interleaved: bool,
) -> Tensor:
    """Each expert that any token has runs on all tokens: products of one size, whatever tokens it has, round alike."""

    def project(rows: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        matrix = weight[expert].t() if transposed else weight[expert]
        return F.linear(rows, matrix.to(rows.dtype), None if bias is None else bias[expert].to(rows.dtype))

    result = torch.zeros_like(x)
    for expert in sorted(set(expert_ids.flatten().tolist())):
        gate, up = halves(project(x, gate_up, gate_up_bias, expert), interleaved)
        out = project(EXPERT_GATES[activation](gate, up, *constants), down, down_bias, expert)
        chosen = expert_ids == expert  # [..., top_k]; a token has an expert at most once
        share = (expert_weights * chosen).sum(dim=-1, keepdim=True).to(x.dtype)
        result = torch.where(chosen.any(dim=-1, keepdim=True), result + out * share, result)
    return result


def _fake(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(x.shape)


# x: [..., hidden]; expert_ids (int64) and expert_weights: [..., top_k], a token's experts, each at most once, and their shares of the
# sum; gate_up: [experts, 2 * inner, hidden], down: [experts, hidden, inner], with `transposed` their last dims the other way round; the
# biases: [experts, 2 * inner] and [experts, hidden]. Of the 2 * inner, gate and up are the halves, or with `interleaved` the even and
# odd ones. activation: a key of EXPERT_GATES; constants: what it takes besides. Result as x.
ROUTED_EXPERTS = define(
    "routed_experts(Tensor x, Tensor expert_ids, Tensor expert_weights, Tensor gate_up, Tensor? gate_up_bias, Tensor down, "
    "Tensor? down_bias, str activation, float[] constants, bool transposed, bool interleaved) -> Tensor",
    reference=_reference,
    fake=_fake,
)
