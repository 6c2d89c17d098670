"""A model's module without memory, and with no more layers than it takes to know all of them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from flexspec.errors import UsageError

_OF_A_KIND = 2
"""Layers of each kind that are kept: that the last one is like another tells where it ends."""


def hollow_model(config: PreTrainedConfig, name: str) -> tuple[nn.Module, Sequence[int] | None]:
    """The model of a config, with parameters that take no memory.

    Args:
        config: of a decoder.
        name: what messages call the model.

    Returns:
        The module with the first few layers of each kind, and for each layer of the model the place of one that is like it; None if
        it has all layers.

    Raises:
        UsageError: if it is the config of something else.
    """
    whole = _built(config, name)
    forms = [repr(form) for form in _layer_forms(whole, config)]
    kept = [layer for layer, form in enumerate(forms) if forms[:layer].count(form) < _OF_A_KIND]
    if len(kept) < len(forms):
        smaller = _with_layers(config, kept)
        part = _built(smaller, name)
        if [repr(form) for form in _layer_forms(part, smaller)] == [forms[layer] for layer in kept]:
            return _hollow(part), [kept.index(forms.index(form)) for form in forms]
    return _hollow(whole), None


class WithoutProducts(TorchFunctionMode):
    """Lets a module with parameters that take no memory run on real tokens: products with them are zeros.

    They would be in memory in full otherwise, which a large model's do not fit.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `torch.overrides.TorchFunctionMode`."""
        if func not in _PRODUCTS or not any(map(_takes_none, args)):
            return func(*args, **(kwargs or {}))
        alike = [torch.empty_like(arg, device="meta") if isinstance(arg, torch.Tensor) else arg for arg in args]
        result = func(*alike, **(kwargs or {}))
        return torch.zeros(result.shape, dtype=result.dtype)


_PRODUCTS = frozenset({F.linear, torch.addmm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm})


def _takes_none(value: Any) -> bool:
    """Whether something is a matrix, or several, all of whose elements are one."""
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return is_real and value.dim() > 1 and value.numel() > 1 and not any(value.stride())


def _with_layers(config: PreTrainedConfig, kept: Sequence[int]) -> PreTrainedConfig:
    smaller = copy.deepcopy(config)
    for key, values in _per_layer(config).items():
        setattr(smaller, key, [values[layer] for layer in kept])
    smaller.num_hidden_layers = len(kept)
    return smaller


def _built(config: PreTrainedConfig, name: str) -> nn.Module:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(f"model {name} ({config.model_type}) is not a decoder-only language model: give one, such as LlamaForCausalLM")
    config = copy.deepcopy(config)
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        module: nn.Module = architecture(config)
    return module.eval()


def _per_layer(config: PreTrainedConfig) -> Mapping[str, list[Any]]:
    """What a config says of each layer."""
    count = config.num_hidden_layers
    return {key: value for key, value in config.to_dict().items() if isinstance(value, list) and len(value) == count}


def _layer_forms(module: nn.Module, config: PreTrainedConfig) -> list[Any]:
    """For each layer, what could make it differ from others: its parts, their settings and sizes, and what the config says of it."""
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList) and len(part) == config.num_hidden_layers]
    if not lists:
        return []
    settings = _per_layer(config)
    return [
        ([values[place] for values in settings.values()], [_form(name, part) for name, part in layer.named_modules()])
        for place, layer in enumerate(lists[0])
    ]


def _form(name: str, part: nn.Module) -> Any:
    plain = {key: value for key, value in vars(part).items() if isinstance(value, bool | int | float | str | None) and key != "layer_idx"}
    return name, type(part).__name__, sorted(plain.items()), [(key, tuple(one.shape)) for key, one in part.named_parameters(recurse=False)]


def _hollow(module: nn.Module) -> nn.Module:
    """Give a module without memory parameters and constants that take none: all elements of each are the same one."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for key, parameter in part._parameters.items():
            if parameter is not None:
                value = made.setdefault(id(parameter), nn.Parameter(_nothing(parameter, torch.float32), requires_grad=False))
                part._parameters[key] = value
        for key, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[key] = _nothing(buffer, torch.float32 if buffer.is_floating_point() else buffer.dtype)
    return module


def _nothing(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((), dtype=dtype).expand(like.shape)
