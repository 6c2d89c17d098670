"""Capture of Hugging Face's mixture-of-experts layers: their experts become one operator, through transformers' experts interface."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from flexspec.errors import UsageError
from flexspec.ir.ops import ROUTED_EXPERTS
from flexspec.ir.ops.routed_experts import CLAMPED_SWISH, EXPERT_GATES

_NAME = "flexspec"
_GATE = "flexspec_gate"
_PROBES = 64
_REACH = 10.0
"""Gates are compared on values up to this, beyond the limits at which models clamp them."""


@dataclass(frozen=True, kw_only=True)
class ExpertGate:
    """What an experts module does between its projections: `activation` and `constants` of `flexspec::routed_experts`."""

    activation: str
    constants: tuple[float, ...] = ()


def switch_experts(shadow: nn.Module, name: str) -> None:
    """Let Hugging Face's experts modules, wherever they are in a module, call the dialect's operator; messages call the model `name`.

    Raises:
        UsageError: naming what an experts module has that the operator does not.
    """
    for part in shadow.modules():
        config = getattr(part, "config", None)
        if hasattr(part, "_apply_gate") and isinstance(config, PreTrainedConfig):
            setattr(part, _GATE, _gate_of(part, name))
            config._experts_implementation = _NAME


def _experts_function(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Transformers' experts interface, mapped to the dialect; hidden_states [tokens, hidden], the others [tokens, top_k]."""
    given: Any = module
    gate: ExpertGate = getattr(module, _GATE)
    gate_up, down = given.gate_up_proj, given.down_proj  # [experts, 2 * inner, hidden], [experts, hidden, inner]
    if given.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    biases = (given.gate_up_proj_bias, given.down_proj_bias) if given.has_bias else (None, None)
    matrices, vectors = _halves(given, gate_up), (None, None) if biases[0] is None else _halves(given, biases[0])
    return ROUTED_EXPERTS(  # type: ignore[no-any-return]
        hidden_states,
        top_k_index,
        top_k_weights,
        matrices[0],
        vectors[0],
        matrices[1],
        vectors[1],
        down,
        biases[1],
        gate.activation,
        list(gate.constants),
    )


ALL_EXPERTS_FUNCTIONS.register(_NAME, _experts_function)


def _halves(module: Any, both: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up along dim 1, as a module keeps them: one after the other, or in turns."""
    gate, up = both.chunk(2, dim=1) if module.is_concatenated else (both[:, ::2], both[:, 1::2])
    return gate, up


def _gate_of(module: nn.Module, name: str) -> ExpertGate:
    """Find out what an experts module makes of gate and up by trying it on numbers."""
    given: Any = module
    has_norm = getattr(given, "has_post_expert_norm", False)
    if has_norm or not given.has_gate:
        raise UsageError(
            f"model {name}: {type(module).__name__} has experts {'with a norm behind them' if has_norm else 'without a gate'}, which is "
            "not supported; supported are experts of a gate, an up and a down projection"
        )
    generator = torch.Generator().manual_seed(0)
    sample = (torch.rand((_PROBES, 2 * _PROBES), generator=generator) * 2 - 1) * _REACH  # [rows, gate and up]
    with torch.no_grad():
        result = given._apply_gate(sample)
    gate, up = _halves(given, sample)
    for candidate in _candidates(given):
        if torch.allclose(EXPERT_GATES[candidate.activation](gate, up, *candidate.constants), result, rtol=1e-5, atol=1e-5):
            return candidate
    raise UsageError(
        f"model {name}: {type(module).__name__} has experts whose gate is none that is supported: {', '.join(EXPERT_GATES)} of the gate "
        "times up"
    )


def _candidates(module: Any) -> list[ExpertGate]:
    plain = [ExpertGate(activation=name) for name in EXPERT_GATES if name != CLAMPED_SWISH]
    alpha, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
    if isinstance(alpha, int | float) and isinstance(limit, int | float):
        plain.append(ExpertGate(activation=CLAMPED_SWISH, constants=(float(alpha), float(limit))))
    return plain
