"""The one interface between the runtime and a compiled model, for the LLM and for every SSM."""

from typing import Protocol

import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.kv_storage import KVShape, KVStorage


class CompiledModel(Protocol):
    """A model lowered for one target.

    Attributes:
        vocab_size: columns of the logits.
        max_positions: positions the model can tell apart, or None if unlimited.
        max_pass_tokens: most tokens of one pass.
        kv_shape: what one slot of its cache holds.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int | None: ...

    @property
    def max_pass_tokens(self) -> int: ...

    @property
    def kv_shape(self) -> KVShape: ...

    def forward(self, batch: Batch, kv: KVStorage) -> torch.Tensor:
        """Run one pass; write the tokens' keys and values into `kv`.

        Returns:
            Logits, float32 [len(batch.output_rows), vocab_size], contiguous; valid until the next `forward`.
        """
        ...
