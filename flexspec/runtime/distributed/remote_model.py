"""A draft model on a device of its own, as the driver sees it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from flexspec.codegen.batch import Batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.runtime.distributed.commands import RunPass
from flexspec.runtime.distributed.interrupts import interrupts_later
from flexspec.runtime.distributed.mirrored_caches import MirroredCaches
from flexspec.runtime.distributed.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class RemoteFacts:
    """What the driver has to know of a model that another rank has compiled, told by that rank.

    Attributes:
        vocab_size: as in `CompiledModel`, like the others.
        max_positions: likewise.
        max_pass_tokens: likewise.
        kv_shape: likewise.
    """

    vocab_size: int
    max_positions: int | None
    max_pass_tokens: int
    kv_shape: KVShape

    @classmethod
    def of(cls, model: CompiledModel) -> "RemoteFacts":
        """Those of a model here."""
        return cls(
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            max_pass_tokens=model.max_pass_tokens,
            kv_shape=model.kv_shape,
        )


class RemoteModel:
    """A `CompiledModel` that runs on another rank; its KV cache is there, and the driver's storage for it is empty."""

    feature_size = 0
    hidden_size = 0
    tree_walker = None
    level_grower = None
    completes_batches = False

    def __init__(self, facts: RemoteFacts, ranks: Ranks, *, worker: int) -> None:
        self.vocab_size = facts.vocab_size
        self.max_positions = facts.max_positions
        self.max_pass_tokens = facts.max_pass_tokens
        # Slots are counted here; what is in them is there.
        self.kv_shape = KVShape(
            num_layers=0,
            num_kv_heads=facts.kv_shape.num_kv_heads,
            head_dim=facts.kv_shape.head_dim,
            padded_head_dim=facts.kv_shape.padded_head_dim,
            dtype=facts.kv_shape.dtype,
            page_size=facts.kv_shape.page_size,
        )
        self._ranks = ranks
        self._worker = worker
        self._caches = MirroredCaches()

    def forward(self, batch: Batch, kv: KVStorage, features: Tensor | None = None) -> Tensor:
        """See `CompiledModel.forward`."""
        assert features is None
        with interrupts_later():
            self._ranks.send(self._worker, RunPass(batch=batch, update=self._caches.update(kv)))
            return self._ranks.receive_tensor(self._worker, (len(batch.output_rows), self.vocab_size))

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> Tensor:
        """A model on another rank is asked for none."""
        raise AssertionError("a remote model has no hidden states")
