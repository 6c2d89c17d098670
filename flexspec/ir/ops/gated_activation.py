"""`flexspec::gated_activation`: act(gate) * up of a gated MLP (Shazeer, 2020)."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from flexspec.ir.ops.library import define
from flexspec.ir.ops.partition_rules import aligned

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def gated_activation(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return ACTIVATIONS[activation](gate) * up


def _fake(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


# gate, up: [..., dim]; activation: a key of ACTIVATIONS.
GATED_ACTIVATION = define(
    "gated_activation(Tensor gate, Tensor up, str activation) -> Tensor", reference=gated_activation, fake=_fake, partitionings=aligned
)
