"""Copies of a module's structure that share its weights."""

import copy

import torch
from torch import nn


def shared_copy(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of `module` on the CPU whose weights are the very same tensors, except those that must be converted.

    Floating-point parameters and persistent buffers are converted to `dtype` (None: left as they are). Buffers that are not saved, such
    as rotary frequencies, keep their precision, as they do when Hugging Face loads a checkpoint. Tied weights stay tied. `module` stays
    as it is, whatever is later done to the copy's structure, mode or config.
    """
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        moved = _moved(parameter, dtype)
        memo[id(parameter)] = parameter if moved is parameter else nn.Parameter(moved.detach(), parameter.requires_grad)
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            memo[id(buffer)] = _moved(buffer, None if name in owner._non_persistent_buffers_set else dtype)
    return copy.deepcopy(module, memo)


def _moved(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to("cpu", dtype if tensor.is_floating_point() else None)
