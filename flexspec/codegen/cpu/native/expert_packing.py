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
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    transposed: bool,
    interleaved: bool,
    dtype: torch.dtype,
) -> PackedExperts:
    """Pack the weights of `flexspec::routed_experts`, of any float dtype, for kernels of `dtype`."""
    if transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    num_experts, hidden, inner = down.shape
    assert gate_up.shape == (num_experts, 2 * inner, hidden)
    return PackedExperts(
        gate_up=_packed(library, [_paired(one, interleaved) for one in gate_up.detach()], dtype),
        down=_packed(library, list(down.detach()), dtype),
        gate_up_bias=None if gate_up_bias is None else torch.stack([_paired(one, interleaved).float() for one in gate_up_bias.detach()]),
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


def _paired(rows: Tensor, interleaved: bool) -> Tensor:
    """Rows of the gate and of up, [2 * inner, …], in turns of 16 of each, padded with zeros to whole turns."""
    halves = (rows[::2], rows[1::2]) if interleaved else rows.chunk(2)
    gate, up = (F.pad(half, (*(0, 0) * (half.dim() - 1), 0, -half.shape[0] % _HALF)).reshape(-1, _HALF, *rows.shape[1:]) for half in halves)
    return torch.cat([gate, up], dim=1).flatten(0, 1)
