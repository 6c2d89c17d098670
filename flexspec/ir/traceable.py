"""What PyTorch does while a model is traced, kept from getting in the way."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def traceable() -> Iterator[None]:
    """While the context is open, PyTorch's encoder layers take masks as they are, and nothing below an error is logged.

    `nn.TransformerEncoder` and its kin compare a mask with the causal one, to run faster if they are equal; what values a mask has can't be
    asked while it is traced. What tracing logs, whole graphs, says nothing that its exception does not.
    """
    transformer: Any = nn.modules.transformer
    compared, level = transformer._detect_is_causal_mask, logging.root.manager.disable
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = compared
        logging.disable(level)
