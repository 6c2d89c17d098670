"""The reduction of split attention."""

from collections.abc import Iterator

import torch

from flexspec.codegen.cuda.kernels.combine_splits import combine_splits_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error
from flexspec.codegen.device_check.part import Context

_BOUNDS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 1e-5}


def split_trials(context: Context) -> Iterator[Trial]:
    """One trial for each type."""
    for dtype, bound in _BOUNDS.items():
        case = f"{str(dtype).removeprefix('torch.')}, 7 splits, some without keys"
        yield Trial(kernel="combine_splits", case=case, bound=bound, error=lambda dtype=dtype: _error(context, dtype))  # type: ignore[misc]


def _error(context: Context, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(1)
    partial = torch.randn((7, 9, 4, 80), generator=generator)
    log_sums = 5 * torch.randn((7, 9, 4), generator=generator)
    empty = torch.rand(log_sums.shape, generator=generator) < 0.3
    empty[0] = False
    log_sums[empty], partial[empty] = -torch.inf, torch.nan
    slots = torch.arange(9, dtype=torch.int32)
    slots[7:] = -1  # padding
    partial[:, 7:], log_sums[:, 7:] = torch.nan, torch.nan
    arguments = (partial, log_sums, slots)
    found = launcher("combine_splits", context.device)(*(one.to(context.device) for one in arguments), dtype)
    return largest_error(found, combine_splits_reference(*arguments, torch.float32))
