"""`flexspec::rms_norm`: root-mean-square normalisation over the last dim (Zhang and Sennrich, 2019)."""

import torch
from torch import Tensor

from flexspec.ir.ops.library import define
from flexspec.ir.ops.partition_rules import heads_apart


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def _fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


# x: [..., dim]; weight: [dim]; result as x, computed in float32.
RMS_NORM = define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", reference=rms_norm, fake=_fake, partitionings=heads_apart)
