"""One comparison of a kernel with its reference."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One comparison.

    Attributes:
        kernel: its name.
        case: what is compared.
        bound: what the error may be.
        error: runs both, and returns the largest error.
    """

    kernel: str
    case: str
    bound: float
    error: Callable[[], float]


def largest_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of 1 + |expected|; infinite where one of them alone is not a number."""
    assert found.shape == expected.shape, f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
    if not found.numel():
        return 0.0
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    error = ((found - expected).abs() / (1 + expected.abs())).masked_fill(found == expected, 0.0)
    error = error.masked_fill(found.isnan() & expected.isnan(), 0.0)
    return math.inf if error.isnan().any() else float(error.max())


def mismatches(found: Tensor, expected: Tensor) -> float:
    """How many numbers differ in the least."""
    assert found.shape == expected.shape, f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
    return float((_bits(found) != _bits(expected)).sum())


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(torch.uint8)
