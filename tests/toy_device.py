"""Toy models whose trees grow as on a GPU: the kernels' references choose, and the toy checks every level's pass."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.cuda.level_growth import GpuLevelGrower, GrowthModel
from flexspec.codegen.cuda.pass_shape import PassSizes

_INTEGERS = ("token_ids", "position_ids", "request_rows", "slots", "context_lens", "tail_bits")
_REST = ("tail_starts", "block_tables", "keys", "values", "block_size")


def on_device(toy: Any) -> Any:
    """A `ToyModel` or a `ToyHead` with a grower of levels."""
    names = [*_INTEGERS, *_REST, *(["features"] if toy.feature_size else [])]

    def module(*inputs: Any) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, inputs, strict=True))
        count = len(given["slots"])
        logits = torch.full((count, toy.vocab_size), torch.nan)
        states = torch.full((count, toy.hidden_size), torch.nan)
        real = (given["slots"] >= 0).nonzero()[:, 0]
        if len(real):
            token_ids, positions, request_rows, slots, context_lens, tail_bits = (given[name][real].numpy() for name in _INTEGERS)
            batch = Batch(
                token_ids=token_ids.astype(np.int64),
                positions=positions.astype(np.int64),
                request_rows=request_rows,
                slots=slots,
                context_lens=context_lens,
                tail_starts=given["tail_starts"].numpy(),
                tail_bits=tail_bits,
                block_tables=given["block_tables"].numpy(),
                output_rows=np.arange(len(real), dtype=np.int32),
            )
            keys, block_size = given["keys"], given["block_size"]
            kv: Any = SimpleNamespace(keys=keys, values=given["values"], block_size=block_size, num_blocks=keys.shape[1] // block_size)
            logits[real] = toy.forward(batch, kv, given["features"][real] if toy.feature_size else None)
            if toy.feature_size:
                states[real] = toy.hidden_states(range(len(real)))
        return (logits, states) if toy.feature_size else (logits,)

    model = GrowthModel(
        module=module,
        inputs=names,
        sizes=PassSizes(tokens=(4, toy.max_pass_tokens), heads=1, kv_heads=1, multiprocessors=0),
        device=torch.device("cpu"),
        dtype=torch.float32,
        vocab_size=toy.vocab_size,
        feature_size=toy.feature_size,
        hidden_size=toy.hidden_size,
        capture=False,
        pool=None,
    )
    toy.kv_shape = replace(toy.kv_shape, page_size=16)
    toy.level_grower = GpuLevelGrower(model, toy.hidden_states)
    return toy
