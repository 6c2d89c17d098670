"""Rotary embeddings whose frequencies depend on how long the text is: `dynamic` and `longrope` of Hugging Face's models.

Up to the length that a model was first trained for, its frequencies are the same for every text. Beyond it every token's follow from
the longest position of the pass, so that one request would change what its batch-mates get, and keys in the cache would be those of other
frequencies. So such a model is compiled for that length.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn


def fix_rope_length(module: nn.Module) -> None:
    """Let the module's rotary embeddings keep the frequencies of short texts, whatever texts it has seen."""
    for part in module.modules():
        kinds: Any = getattr(part, "rope_type", None)
        if isinstance(kinds, str) and _follows_length(kinds):
            _keep(part, "")
            part.rope_type = "default"  # type: ignore[assignment]
        elif isinstance(kinds, Mapping):
            changing = [layer for layer, kind in kinds.items() if _follows_length(kind)]
            for layer in changing:
                _keep(part, f"{layer}_")
            part.rope_type = {**kinds, **dict.fromkeys(changing, "default")}  # type: ignore[assignment]


def rope_length(config: object) -> tuple[int, str] | None:
    """How many positions have the frequencies of short texts, and the kind of rotary embedding; None if all have."""
    limits = []
    for parameters in _all_parameters(config):
        kind = str(parameters.get("rope_type", "default"))
        if _follows_length(kind):
            # `dynamic` changes where the config's own limit is.
            places = (parameters, vars(config)) if kind == "longrope" else ()
            given = [place["original_max_position_embeddings"] for place in places if place.get("original_max_position_embeddings")]
            limit = given[0] if given else getattr(config, "max_position_embeddings", None)
            if isinstance(limit, int):
                limits.append((limit, kind))
    return min(limits, default=None)


def _follows_length(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"


def _keep(part: nn.Module, prefix: str) -> None:
    original = getattr(part, f"{prefix}original_inv_freq", None)
    if original is not None:
        setattr(part, f"{prefix}inv_freq", original.clone())


def _all_parameters(config: object) -> Iterable[Mapping[str, Any]]:
    """One of all layers, or one of each type of layer."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [one for one in given.values() if isinstance(one, Mapping)] or [given]
