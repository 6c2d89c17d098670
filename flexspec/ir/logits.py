"""The logits in what a model's forward returns."""

from collections.abc import Mapping
from typing import Any


def logits_of(output: Any) -> Any:
    """The field or entry `logits`, the first of several values (nanoGPT's logits and loss), or the output itself."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if isinstance(output, tuple | list) and output and not hasattr(output, "logits"):
        return output[0]
    return getattr(output, "logits", output)
