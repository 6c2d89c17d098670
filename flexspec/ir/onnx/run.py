"""Running an operator at one of the trial sizes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flexspec.ir.onnx.values import at_trial, values_in


def run_at(trial: int, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The result of a call at a trial, by number; of device `meta`, all floats float32, if it depends on the tokens."""
    tensors = values_in((args, tuple(kwargs.values())))
    args = at_trial(args, trial)
    kwargs = {name: at_trial(one, trial) for name, one in kwargs.items()}
    if any(not value.is_token_free for value in tensors):
        args, kwargs = _mapped(args, _without_contents), _mapped(kwargs, _without_contents)
    elif len({value.dtype for value in tensors if value.is_floating_point}) > 1:
        args, kwargs = _mapped(args, _as_float32), _mapped(kwargs, _as_float32)
    result = target(*args, **kwargs)
    assert isinstance(result, Tensor)
    return result


def _mapped(argument: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, change, argument)


def _without_contents(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    if tensor.is_meta and tensor.dtype == dtype:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
