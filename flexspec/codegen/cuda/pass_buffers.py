"""The inputs of a pass of one shape, where a captured graph reads a new pass where it read the last one."""

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.batch import Batch, Int32
from flexspec.codegen.cuda.packed_inputs import PackedInputs
from flexspec.codegen.cuda.pass_shape import PassShape, request_sizes
from flexspec.codegen.cuda.tiles import query_tiles
from flexspec.codegen.device_trees import BITS, DEPTH, TOKEN, GrownRows

# Padding touches nothing: its tokens have this slot and no context, its tiles no tokens, its output rows are row 0.
_NO_SLOT = -1


class PassBuffers:
    """Static inputs of one shape.

    Args:
        shape: of the pass.
        device: where the model runs.
        feature_size: columns of the features; 0 for none.
        dtype: of the features.

    Attributes:
        inputs: tensors by the names of the graph's inputs.
    """

    def __init__(self, shape: PassShape, *, device: torch.device, feature_size: int, dtype: torch.dtype) -> None:
        self._shape = shape
        tokens = (shape.num_tokens,)
        shapes: dict[str, tuple[int, ...]] = {
            "token_ids": tokens,
            "position_ids": tokens,
            "request_rows": tokens,
            "slots": tokens,
            "context_lens": tokens,
            "output_rows": (shape.num_outputs,),
            "tail_starts": (shape.num_requests,),
            "tail_bits": (shape.num_tokens, shape.tail_words),
            "block_tables": (shape.num_requests, shape.table_columns),
            "tiles": (shape.num_tiles, 4),
        }
        self._packed = PackedInputs({name: (dims, np.int32) for name, dims in shapes.items()}, device=device, padding={"slots": _NO_SLOT})
        self.inputs: dict[str, Tensor] = dict(self._packed.tensors)
        if feature_size:
            self.inputs["features"] = torch.zeros((shape.num_tokens, feature_size), dtype=dtype, device=device)

    def fill(self, batch: Batch, features: Tensor | None) -> None:
        """Copy a batch to the device; the copy is ordered with what the device does, and the host does not wait for it."""
        self._packed.fill(
            {
                "token_ids": batch.token_ids,
                "position_ids": batch.positions,
                "request_rows": batch.request_rows,
                "slots": batch.slots,
                "context_lens": batch.context_lens,
                "output_rows": batch.output_rows,
                "tail_starts": batch.tail_starts,
                "tail_bits": batch.tail_bits[:, : self._shape.tail_words],  # none if every request is a chain
                "block_tables": batch.block_tables,
                "tiles": _tiles(batch, self._shape.block_tokens),
            }
        )
        if batch.grown is not None:
            self._complete(batch.grown)
        if features is not None:
            self.inputs["features"][: len(features)].copy_(features, non_blocking=True)

    def _complete(self, grown: GrownRows) -> None:
        """Write what the host does not know, and turn tokens that are no nodes into padding."""
        rows, targets = grown.rows, grown.targets
        depths = rows[:, DEPTH]
        positions, slots, context_lens = (self.inputs[name].index_select(0, targets) for name in ("position_ids", "slots", "context_lens"))
        written = {
            "token_ids": rows[:, TOKEN],
            "position_ids": positions + depths,
            "slots": slots.masked_fill(depths == 0, _NO_SLOT),
            "context_lens": context_lens * (depths > 0),
        }
        for name, values in written.items():
            self.inputs[name].index_copy_(0, targets, values)
        # Nodes are verified from the first on, so no bit is lost.
        bits = rows[:, BITS : BITS + self._shape.tail_words]
        self.inputs["tail_bits"][:, : bits.shape[1]].index_copy_(0, targets, bits)


def _tiles(batch: Batch, block_tokens: int) -> Int32:
    tiles = query_tiles(request_sizes(batch), block_tokens)
    tiles[:, 2] = batch.request_rows[tiles[:, 0]]  # a request may have no token in the pass
    return tiles
