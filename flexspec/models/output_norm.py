"""Where a model's last hidden state is: what its output matrix reads."""

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
    seen: dict[str, Tensor] = {}
    read: list[Tensor] = []
    hooks = [output.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))]
    for name, part in module.named_modules():
        if part is not output and part is not module:
            hooks.append(part.register_forward_hook(lambda _, __, result, name=name: seen.update({name: result})))
    ids = torch.arange(_PROBE).remainder(2)[None]
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, position_ids=torch.arange(_PROBE)[None]).logits
            expected = output(read[0])
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, value in seen.items() if isinstance(value, Tensor) and value.data_ptr() == read[0].data_ptr()]
    if not names or (logits - expected).abs().max() > _TOLERANCE * expected.abs().max():
        raise UsageError(
            f"{type(module).__name__} does more to its logits than its output matrix does, so no draft model can be tuned to it with its "
            "own output matrix: give another model"
        )
    return names[-1]
