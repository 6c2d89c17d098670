"""`flexspec::packed_linear`: a linear layer whose weight the target lays out once, at compile time, as its kernels want it."""

import torch.nn.functional as F
from torch import Tensor

from flexspec.ir.ops.library import define


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


# x: [..., in]; weight: [out, in], in the IR still in its plain layout; bias: [out].
PACKED_LINEAR = define("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", reference=_reference, fake=_fake)
