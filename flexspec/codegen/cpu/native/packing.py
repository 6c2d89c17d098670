"""Weights in the layout that the native linear reads."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.codegen.cpu.native.library import NativeLibrary

PANEL = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWeight:
    """A linear's weight in panels of 32 output columns.

    `data` is [panels, in_features, 32] in float32, [panels, in_features / 2, 32, 2] in bfloat16, zero-padded.
    """

    data: Tensor
    out_features: int
    in_features: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weight."""
        return self.data.nbytes


def pack_linear(library: NativeLibrary, weight: Tensor, dtype: torch.dtype) -> PackedWeight:
    """Pack a linear's weight [out_features, in_features] of any float dtype for kernels of `dtype`."""
    out_features, in_features = weight.shape
    group = {torch.float32: 1, torch.bfloat16: 2}[dtype]
    padded = F.pad(weight.detach().to(dtype), (0, -in_features % group, 0, -out_features % PANEL)).contiguous()
    # One 4-byte unit holds what a lane multiplies at once: a float32, or two bfloat16 neighbours.
    units = padded.view(torch.int32).view(-1, PANEL, padded.shape[1] // group)  # [panels, 32, units]
    return PackedWeight(data=units.transpose(1, 2).contiguous(), out_features=out_features, in_features=in_features)
