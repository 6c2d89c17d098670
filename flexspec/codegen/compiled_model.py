"""The one interface between the runtime and a compiled model, for the LLM and for every SSM."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.codegen.level_growth import LevelGrower
from flexspec.codegen.lowering import LoweringReport
from flexspec.codegen.tree_walk import TreeWalker


class CompiledModel(Protocol):
    """A model lowered for one target.

    Attributes:
        vocab_size: columns of the logits.
        max_positions: positions the model can tell apart, or None if unlimited.
        max_pass_tokens: most tokens of one pass.
        kv_shape: what one slot of its cache holds.
        feature_size: columns of the features that every pass takes; 0 if it takes none.
        hidden_size: columns of all hidden states side by side; 0 if none were asked for.
        tree_walker: decides about trees where the logits are, if that is not the host.
        level_grower: grows draft trees there, likewise.
        completes_batches: whether batches may leave nodes of trees that grew there to the device: `Batch.grown`.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int | None: ...

    @property
    def max_pass_tokens(self) -> int: ...

    @property
    def kv_shape(self) -> KVShape: ...

    @property
    def feature_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def tree_walker(self) -> TreeWalker | None: ...

    @property
    def level_grower(self) -> LevelGrower | None: ...

    @property
    def completes_batches(self) -> bool: ...

    def forward(self, batch: Batch, kv: KVStorage, features: torch.Tensor | None = None) -> torch.Tensor:
        """Run one pass; write the tokens' keys and values into `kv`.

        Args:
            batch: the tokens.
            kv: the cache.
            features: float32 [batch.num_tokens, feature_size] if the model takes features, else None.

        Returns:
            Logits, float32 [len(batch.output_rows), vocab_size], contiguous, on the device of `kv`; valid until the next `forward`.
            A pipeline stage before the last gives, instead, what the next one takes as features: a row for each token of the batch.
        """
        ...

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> torch.Tensor:
        """A copy of the hidden states of tokens of the last pass; only of a model with a `hidden_size`.

        Args:
            rows: places of the tokens in that pass's batch.

        Returns:
            float32 [len(rows), hidden_size], the states side by side in the order in which they were asked for.
        """
        ...


class LoweredModel(CompiledModel, Protocol):
    """A compiled model that tells how it was made.

    Attributes:
        lowering: what code generation chose.
    """

    lowering: LoweringReport


def wait_for(logits: torch.Tensor) -> None:
    """Wait until the device has done what `logits` come from; a host's are always there."""
    if logits.is_cuda:
        torch.cuda.synchronize(logits.device)
