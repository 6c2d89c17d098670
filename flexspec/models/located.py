"""Which file or folder a model's name stands for."""

import os
from pathlib import Path

from flexspec.errors import UsageError
from flexspec.models import smollm2
from flexspec.models.onnx_file import SUFFIX as ONNX_SUFFIX
from flexspec.models.pretrained import ALLOWED_MODELS

_SUFFIXES = (".gguf", ONNX_SUFFIX, ".safetensors")


def located(name: str) -> Path | None:
    """The file or folder of the model that users call `name`, which is fetched if flexspec fetches it; None for a name on the hub.

    Raises:
        UsageError: if it is empty, or a path to nothing, or can't be fetched.
    """
    if name == smollm2.NAME:
        return smollm2.smollm2_gguf()
    path = os.path.expanduser(name)
    if name and os.path.exists(path):
        return Path(path)
    if not name or _looks_like_a_path(name):
        raise UsageError(f"model {name!r} does not exist: {ALLOWED_MODELS}")
    return None


def is_onnx(path: Path) -> bool:
    """Whether a path is that of an ONNX file, by its suffix."""
    return path.suffix.lower() == ONNX_SUFFIX and path.is_file()


def _looks_like_a_path(name: str) -> bool:
    """Whether no model on the hub can be called so."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.lower().endswith(_SUFFIXES)
