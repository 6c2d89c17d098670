"""A model's first layers as a draft model of their own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from flexspec.errors import UsageError
from flexspec.models.graph_layers import keep_graph_layers
from flexspec.models.onnx_file import OnnxDecoder
from flexspec.models.shared_copy import shared_copy

PRUNE = "prune:"
"""What the names of such drafters begin with; the number of layers follows."""
_MOST_DIGITS, _MOST_SHOWN = 9, 40


def parse_prune(name: str) -> int | None:
    """K of a drafter called `prune:K`; None for one called otherwise.

    Raises:
        UsageError: if K is no number.
    """
    if not name.startswith(PRUNE):
        return None
    count = name.removeprefix(PRUNE)
    if not count.isdecimal() or len(count) > _MOST_DIGITS:
        shown = name if len(name) <= _MOST_SHOWN else f"{name[: _MOST_SHOWN - 1]}…"
        raise UsageError(f"ssm {shown!r} is not allowed: give prune:K, K being the number of layers to keep, for example prune:4")
    return int(count)


def check_prune(count: int, total: int, model: str) -> None:
    """Refuse to keep more layers than a model has.

    Raises:
        UsageError: if `count` is not from 1 to `total`.
    """
    if not 1 <= count <= total:
        raise UsageError(f"prune:{count} is not allowed: {model} has {total} layers, give a number from 1 to {total}")


def prune_layers(module: nn.Module, count: int) -> nn.Module:
    """`module` with only its first `count` decoder layers, followed by its own norm and head; all weights are shared.

    `module` is left untouched; the copy has a config of its own, with `num_hidden_layers` set to `count`.

    Raises:
        UsageError: if `count` is not from 1 to the number of layers, or if the list of layers cannot be found.
    """
    total = module.config.num_hidden_layers if isinstance(module, OnnxDecoder) else len(_layers(module))
    check_prune(count, total, type(module).__name__)
    return keep_layers(module, range(count))


def keep_layers(module: nn.Module, places: Sequence[int]) -> nn.Module:
    """`module` with only the decoder layers at `places`, ascending, followed by its own norm and head; all weights are shared.

    As `prune_layers`, of which this is the general form.
    """
    pruned = shared_copy(module)
    if isinstance(pruned, OnnxDecoder):
        keep_graph_layers(pruned.graph, places)
        pruned.config = replace(pruned.config, num_hidden_layers=len(places))
        return pruned
    layers = _layers(pruned)
    kept = [layers[place] for place in places]
    del layers[:]
    layers.extend(kept)
    for place, layer in enumerate(layers):
        # The layer's cache is addressed by it.
        parts: list[Any] = list(layer.modules())
        for part in parts:
            if hasattr(part, "layer_idx"):
                part.layer_idx = place
    config: Any = pruned.config
    config.num_hidden_layers = len(places)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        config.layer_types = [layer_types[place] for place in places]
    return pruned


def layer_names(module: nn.Module) -> list[str]:
    """The names of the decoder layers in `module`, in order, for `get_submodule`.

    Raises:
        UsageError: if they can't be found.
    """
    layers = _layers(module)
    prefix = next(name for name, part in module.named_modules() if part is layers)
    return [f"{prefix}.{place}" for place in range(len(layers))]


def _layers(module: nn.Module) -> nn.ModuleList:
    total = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    if not isinstance(total, int):
        raise UsageError(f"{type(module).__name__}: its layers are found through config.num_hidden_layers, which it lacks")
    lists = _outermost_lists(module, total)
    if len(lists) != 1:
        raise UsageError(
            f"{type(module).__name__}: {len(lists)} of its module lists have num_hidden_layers = {total} entries, and exactly one is needed"
        )
    return lists[0]


def _outermost_lists(module: nn.Module, length: int) -> list[nn.ModuleList]:
    """Module lists of `length` entries, those inside another one (experts of a layer, say) left out."""
    found: list[nn.ModuleList] = []
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len(child) == length:
            found.append(child)
        else:
            found.extend(_outermost_lists(child, length))
    return found
