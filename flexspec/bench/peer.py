"""What other systems are measured on."""

from dataclasses import dataclass
from pathlib import Path

import torch

from flexspec.bench.measurement import GenerationSettings
from flexspec.models.loaded_model import LoadedModel


@dataclass(frozen=True, kw_only=True)
class PeerTask:
    """What a peer gets.

    Attributes:
        loaded: the model, its weights in `dtype`.
        dtype: of the weights.
        settings: what is generated.
        max_len: most tokens of a prompt and its completion together.
        scratch: a folder for files of the peer's own, deleted afterwards.
    """

    loaded: LoadedModel
    dtype: torch.dtype
    settings: GenerationSettings
    max_len: int
    scratch: Path


class PeerUnavailable(Exception):
    """The peer can't be measured here; the message says why."""
