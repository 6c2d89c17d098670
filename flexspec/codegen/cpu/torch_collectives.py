"""The parallel operators for the `cpu-torch` target: functions of tensors that talk to a group's other ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.ir.ops import COMBINE, REDUCE, REPLICATE

_ROWS = torch.contiguous_format


def collective_functions(group: ParallelGroup) -> dict[Any, Callable[..., Tensor]]:
    """What runs each parallel operator that sends something."""

    def combined(x: Tensor, widths: Sequence[int], _name: str) -> Tensor:
        rows, width = x.shape[0], x[0, 0].numel() if x.dim() > 2 else 1
        out = x.new_empty((rows, sum(widths) * width))
        group.combine(x.reshape(rows, -1), [one * width for one in widths], out)
        return out.reshape(rows, -1, *x.shape[2:]) if x.dim() > 2 else out

    def reduced(x: Tensor, _size: int, _name: str) -> Tensor:
        total = x.clone(memory_format=_ROWS)
        group.reduce(total)
        return total

    def replicated(x: Tensor, _name: str) -> Tensor:
        value = x.clone(memory_format=_ROWS)
        group.replicate(value)
        return value

    return {COMBINE: combined, REDUCE: reduced, REPLICATE: replicated}
