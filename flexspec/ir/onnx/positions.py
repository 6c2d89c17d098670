"""Which values of an ONNX graph are positions, whatever they were computed from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flexspec.ir.onnx.values import Trial, Value


def position_offset(value: Value, trials: Sequence[Trial]) -> tuple[int, int] | None:
    """The dim that positions run along and what is added to them, if a value is positions: [batch or 1, ..., length, ...], other dims 1.

    Positions counted from the length and from the mask's sum are the same numbers in a sequence without cache and padding; in the new
    graph both are the position input.
    """
    if not value.is_token_free or value.rank < 2 or value.dtype == torch.bool:
        return None
    for dim in range(1, value.rank):
        offsets = {_offset(tensor, dim, trial) for tensor, trial in zip(value.trials, trials, strict=True)}
        if len(offsets) == 1 and (offset := offsets.pop()) is not None:
            return dim, offset
    return None


def _offset(tensor: Tensor, dim: int, trial: Trial) -> int | None:
    others = [size for index, size in enumerate(tensor.shape) if index not in (0, dim)]
    if tensor.shape[dim] != trial.length or tensor.shape[0] not in (1, trial.batch) or any(size != 1 for size in others):
        return None
    rows = tensor.reshape(tensor.shape[0], trial.length)
    offset = float(rows[0, 0])
    if not offset.is_integer() or not torch.equal(rows, (torch.arange(trial.length) + int(offset)).to(rows.dtype).expand_as(rows)):
        return None
    return int(offset)
