"""Weights of a layer's experts in the layout that the native kernel reads."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.codegen.cpu.native.library import NativeLibrary
from flexspec.codegen.cpu.native.packing import PANEL, pack_linear

_HALF = PANEL // 2


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedExperts:
    """The experts of a layer: `gate_up` and `down` hold each expert's panels as `PackedWeight` does, a row an expert.

    A panel of `gate_up` has 16 columns of the gate, then the same of up; biases [experts, columns] are laid out as their panels.
    """

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    num_experts: int
    hidden: int
    inner: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weights and biases."""
        biases = (self.gate_up_bias, self.down_bias)
        return self.gate_up.nbytes + self.down.nbytes + sum(bias.nbytes for bias in biases if bias is not None)


def pack_experts(
    library: NativeLibrary,
    *,
    gate: Tensor,
    gate_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    dtype: torch.dtype,
) -> PackedExperts:
    """Pack the weights of `flexspec::routed_experts`, of any float dtype, for kernels of `dtype`."""
    num_experts, hidden, inner = down.shape
    assert gate.shape == up.shape == (num_experts, inner, hidden) and (gate_bias is None) == (up_bias is None)
    biases = None if gate_bias is None or up_bias is None else zip(gate_bias.detach(), up_bias.detach(), strict=True)
    return PackedExperts(
        gate_up=_packed(library, [_paired(*both) for both in zip(gate.detach(), up.detach(), strict=True)], dtype),
        down=_packed(library, list(down.detach()), dtype),
        gate_up_bias=None if biases is None else torch.stack([_paired(*both).float() for both in biases]),
        down_bias=None if down_bias is None else F.pad(down_bias.detach().float(), (0, -hidden % PANEL)),
        num_experts=num_experts,
        hidden=hidden,
        inner=inner,
    )


def _packed(library: NativeLibrary, weights: list[Tensor], dtype: torch.dtype) -> Tensor:
    """[experts, panels, units, 32 columns]"""
    first = pack_linear(library, weights[0], dtype).data
    result = first.new_empty((len(weights), *first.shape))
    for expert, weight in enumerate(weights):
        result[expert] = pack_linear(library, weight, dtype).data
    return result


def _paired(gate: Tensor, up: Tensor) -> Tensor:
    """Rows of the gate and of up, [inner, …], in turns of 16 of each, padded with zeros to whole turns."""
    padding = (*(0, 0) * (gate.dim() - 1), 0, -gate.shape[0] % _HALF)
    turns = [F.pad(rows, padding).reshape(-1, _HALF, *rows.shape[1:]) for rows in (gate, up)]
    return torch.cat(turns, dim=1).flatten(0, 1)
