"""Logits of a compiled model after a text, without any engine."""

from collections.abc import Sequence

import numpy as np
import torch

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage


def next_logits(model: CompiledModel, tokens: Sequence[int]) -> torch.Tensor:
    """Float32 [vocab] logits of the token that follows `tokens`, prefilled in chunks as large as the model takes."""
    ids = np.asarray(tokens, dtype=np.int64)
    kv = KVStorage(model.kv_shape, num_blocks=1, block_size=len(ids))
    size = model.max_pass_tokens
    for start in range(0, len(ids), size):
        chunk = ids[start : start + size]
        logits = model.forward(chain_batch(chunk, start=start, output_rows=np.array([len(chunk) - 1], dtype=np.int32)), kv)
    return logits[0].clone()
