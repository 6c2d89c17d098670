"""`flexspec::packed_linear` for CPUs in PyTorch operators: oneDNN with weights reordered once."""

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN picks its blocks by row count; on multiples of 4 a row's sums are formed alike.
_ROWS = 4


def reorder(weight: Tensor) -> Tensor:
    """The weight [out, in] in oneDNN's own layout; an opaque tensor for `packed_linear`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return packed


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [tokens, in] times a reordered weight, plus bias [out]."""
    rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -rows % _ROWS))
    result: Tensor = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
    return result[:rows]
