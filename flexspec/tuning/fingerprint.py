"""A short text that tells one training from another."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flexspec.tuning.corpus import Text

_ROWS_APART = 97
"""Rows of a weight that are looked at: enough to tell two models apart, few enough for large ones."""


def fingerprint(settings: Any, llm: nn.Module, texts: Sequence[Text]) -> str:
    """Differs if the settings, the model's weights or the texts do."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, parameter in llm.named_parameters():
        rows = (parameter.detach() if parameter.dim() else parameter.detach()[None])[::_ROWS_APART].to(torch.bfloat16).contiguous()
        digest.update(name.encode())
        digest.update(rows.view(torch.int16).numpy().tobytes())
    for text in texts:
        digest.update(text.tokens.tobytes())
    return digest.hexdigest()[:16]
