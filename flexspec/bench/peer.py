"""What other systems are measured on."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        assistant: the run's first SSM that is a whole model, its vocabulary untrimmed; None if there is none.
    """

    loaded: LoadedModel
    dtype: torch.dtype
    settings: GenerationSettings
    max_len: int
    scratch: Path
    assistant: LoadedModel | None = None


class PeerUnavailable(Exception):
    """The peer can't be measured here; the message says why."""


def import_peer(module: str, package: str) -> Any:
    """The Python module of a peer that may not be installed.

    Args:
        module: its name.
        package: what pip installs it as.

    Raises:
        PeerUnavailable: if it can't be imported, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        reason = "is not installed" if missing else f"can't be imported ({error})"
        raise PeerUnavailable(f"{module} {reason}: pip install {package}") from None


def last_line(error: Exception) -> str:
    """What an error comes down to: native libraries begin with where in their sources it was raised."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
