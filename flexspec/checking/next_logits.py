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
    kv = KVStorage.of_requests(model.kv_shape, len(ids))
    size = model.max_pass_tokens
    for start in range(0, len(ids), size):
        chunk = ids[start : start + size]
        last = np.array([len(chunk) - 1], dtype=np.int32)
        logits = model.forward(chain_batch(chunk, start=start, block_table=kv.block_table, output_rows=last), kv)
    return logits[0].to("cpu", copy=True)
