"""Toy models whose trees grow, and are verified, as on a GPU: the kernels' references choose, and the toy checks every pass."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.cuda.level_growth import GpuLevelGrower, GrowthModel
from flexspec.codegen.cuda.pass_buffers import PassBuffers
from flexspec.codegen.cuda.pass_shape import PassSizes
from flexspec.codegen.cuda.walker import KernelWalker

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


def that_walks(toy: Any) -> Any:
    """A `ToyModel` that walks trees as a GPU does, and completes batches whose trees grew on the device."""
    sizes = PassSizes(tokens=(4, 16, toy.max_pass_tokens), heads=1, kv_heads=1, multiprocessors=0)
    forward = toy.forward

    def completed(batch: Batch, kv: Any, features: torch.Tensor | None = None) -> torch.Tensor:
        if batch.grown is None:
            return forward(batch, kv, features)
        buffers = PassBuffers(sizes.shape(batch), device=torch.device("cpu"), feature_size=0, dtype=torch.float32)
        buffers.fill(batch, None)
        given = {name: tensor[: batch.num_tokens].numpy() for name, tensor in buffers.inputs.items() if name in _INTEGERS}
        is_real = given["slots"] >= 0
        for name in ("token_ids", "context_lens", "tail_bits"):
            assert not given[name][~is_real].any(), f"padding with {name}"
        kept = is_real.nonzero()[0]
        is_put_out = np.isin(batch.output_rows, kept)
        real = Batch(
            token_ids=given["token_ids"][kept].astype(np.int64),
            positions=given["position_ids"][kept].astype(np.int64),
            request_rows=given["request_rows"][kept],
            slots=given["slots"][kept],
            context_lens=given["context_lens"][kept],
            tail_starts=batch.tail_starts,
            tail_bits=given["tail_bits"][kept],
            block_tables=batch.block_tables,
            output_rows=np.searchsorted(kept, batch.output_rows[is_put_out]).astype(np.int32),
        )
        logits = torch.full((len(batch.output_rows), toy.vocab_size), torch.nan)
        logits[torch.from_numpy(is_put_out)] = forward(real, kv, features)
        return logits

    toy.forward = completed
    toy.tree_walker = KernelWalker()
    toy.completes_batches = True
    toy.kv_shape = replace(toy.kv_shape, page_size=16)
    return toy
