"""Where a model's last hidden state is: what its output matrix reads."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from flexspec.errors import UsageError

_PROBE = 4
_TOLERANCE = 1e-3


def output_norm_name(module: nn.Module) -> str:
    """The name of the submodule whose output, times the output matrix, is the logits: the final norm.

    Found by watching the module run on a few tokens.

    Raises:
        UsageError: if there is none: logits that are scaled, capped or projected further are not supported here.
    """
    model: Any = module
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if output is None:
        raise UsageError(f"{type(module).__name__} has no output matrix that get_output_embeddings() tells: give a causal language model")
    if getattr(output, "bias", None) is not None:
        raise UsageError(f"the output matrix of {type(module).__name__} has a bias, which draft models lack: give another model")
    seen: dict[str, Tensor] = {}
    read: list[Tensor] = []
    hooks = [output.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))]
    for name, part in module.named_modules():
        if part is not output and part is not module:
            hooks.append(part.register_forward_hook(lambda _, __, result, name=name: seen.update({name: result})))
    ids = torch.arange(_PROBE).remainder(2)[None]
    options = {"position_ids": torch.arange(_PROBE)[None]} if "position_ids" in inspect.signature(module.forward).parameters else {}
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, **options).logits
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, value in seen.items() if read and isinstance(value, Tensor) and value.data_ptr() == read[0].data_ptr()]
    with torch.no_grad():
        expected = output(read[0]) if names else logits
    if not names or not _is_close(logits, expected):
        raise UsageError(
            f"{type(module).__name__} does more to its logits than its output matrix does, so no draft model can be tuned to it with its "
            "own output matrix: give another model"
        )
    return names[-1]


def _is_close(logits: Tensor, expected: Tensor) -> bool:
    return bool((logits - expected).abs().max() <= _TOLERANCE * expected.abs().max())
