"""A model's first layers as a draft model of their own."""

from typing import Any

from torch import nn

from flexspec.errors import UsageError
from flexspec.models.shared_copy import shared_copy


def prune_layers(module: nn.Module, count: int) -> nn.Module:
    """`module` with only its first `count` decoder layers, followed by its own norm and head; all weights are shared.

    `module` is left untouched; the copy has a config of its own, with `num_hidden_layers` set to `count`.

    Raises:
        UsageError: if `count` is not from 1 to the number of layers, or if the list of layers cannot be found.
    """
    config: Any = getattr(module, "config", None)
    total = getattr(config, "num_hidden_layers", None)
    if not isinstance(total, int):
        raise UsageError(f"{type(module).__name__} can't be pruned: its layers are found through config.num_hidden_layers, which it lacks")
    if not 1 <= count <= total:
        raise UsageError(f"prune:{count} is not allowed: {type(module).__name__} has {total} layers, give a number from 1 to {total}")

    pruned = shared_copy(module)
    lists = _outermost_lists(pruned, total)
    if len(lists) != 1:
        raise UsageError(
            f"{type(module).__name__} can't be pruned: {len(lists)} of its module lists have num_hidden_layers = {total} entries, "
            "and exactly one is needed"
        )
    del lists[0][count:]
    pruned_config: Any = pruned.config
    layer_types = getattr(config, "layer_types", None)
    pruned_config.num_hidden_layers = count
    if layer_types is not None:
        pruned_config.layer_types = list(layer_types[:count])
    return pruned


def _outermost_lists(module: nn.Module, length: int) -> list[nn.ModuleList]:
    """Module lists of `length` entries, those inside another one (experts of a layer, say) left out."""
    found: list[nn.ModuleList] = []
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len(child) == length:
            found.append(child)
        else:
            found.extend(_outermost_lists(child, length))
    return found
