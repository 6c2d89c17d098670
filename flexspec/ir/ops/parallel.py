"""The parallel operators: values that move between the layouts of `flexspec.ir.partition` on the ranks of a tensor-parallel group.

Each rank has a graph of its own, and all ranks of a group run theirs on the same tokens at once. A divided value has its columns, or its
heads, on dim 1 divided. References are functional collectives of `torch.distributed` over the process group that is called `group`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives  # the collectives' shapes are registered there
from torch import Tensor

from flexspec.ir.ops.library import define

_functional: Any = torch.ops._c10d_functional


def repartition(x: Tensor, start: int, length: int) -> Tensor:
    return x.narrow(1, start, length).clone()


def combine(x: Tensor, widths: Sequence[int], group: str) -> Tensor:
    # Collectives take equal parts.
    widest = max(widths)
    padded = torch.constant_pad_nd(x, [*(0, 0) * (x.dim() - 2), 0, widest - x.shape[1]]).contiguous()
    parts = gathered(padded, len(widths), group)
    return torch.cat([part.narrow(1, 0, width) for part, width in zip(parts, widths, strict=True)], dim=1)


def reduce(x: Tensor, size: int, group: str) -> Tensor:
    if size == 2:  # the order of two summands does not matter
        return _waited(_functional.all_reduce.default(x.contiguous(), "sum", group))
    return ordered_sum(gathered(x.contiguous(), size, group))


def replicate(x: Tensor, group: str) -> Tensor:
    return _waited(_functional.broadcast.default(x.contiguous(), 0, group))


def gathered(x: Tensor, size: int, group: str) -> tuple[Tensor, ...]:
    """Every rank's `x`."""
    # The first dim is the tokens: gathered ranks follow each other there.
    return _waited(_functional.all_gather_into_tensor.default(x, size, group)).chunk(size)


def _waited(x: Tensor) -> Tensor:
    result: Tensor = _functional.wait_tensor.default(x)
    return result


def ordered_sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum in the order of the ranks.

    A ring adds in an order that depends on where an element lies, so a row's sum would depend on how many rows share the pass.
    """
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _repartition_fake(x: Tensor, start: int, length: int) -> Tensor:
    return x.new_empty((x.shape[0], length, *x.shape[2:]))


def _combine_fake(x: Tensor, widths: Sequence[int], group: str) -> Tensor:
    return x.new_empty((x.shape[0], sum(widths), *x.shape[2:]))


def _alike(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(x.shape)


# Replicated → sharded. x: [tokens, columns, …]; result: columns start … start + length - 1, this rank's. Nothing is sent.
REPARTITION = define("repartition(Tensor x, int start, int length) -> Tensor", reference=repartition, fake=_repartition_fake)

# Sharded → replicated (all-gather). x: [tokens, own columns, …]; widths: the columns of each rank; result: [tokens, all columns, …].
COMBINE = define("combine(Tensor x, int[] widths, str group) -> Tensor", reference=combine, fake=_combine_fake)

# Partial → replicated (all-reduce). x: this rank's summand; size: ranks of the group; result as x, bitwise alike on all ranks.
REDUCE = define("reduce(Tensor x, int size, str group) -> Tensor", reference=reduce, fake=_alike)

# What the group's first rank has → replicated (broadcast). x: of the same shape on every rank; result as x.
REPLICATE = define("replicate(Tensor x, str group) -> Tensor", reference=replicate, fake=_alike)
