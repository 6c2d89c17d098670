"""The model as its driver sees it: other ranks run the stages before the last, and their parts of that one."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.codegen.batch import Batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.codegen.level_growth import LevelGrower
from flexspec.codegen.tree_walk import TreeWalker
from flexspec.runtime.distributed.commands import RunPass
from flexspec.runtime.distributed.interrupts import interrupts_later
from flexspec.runtime.distributed.mirrored_caches import MirroredCaches
from flexspec.runtime.distributed.ranks import Ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class StartedPass:
    """A pass that the other ranks work on.

    Attributes:
        batch: its tokens.
        kv: its cache.
    """

    batch: Batch
    kv: KVStorage


class StagedModel:
    """A `CompiledModel` made of the driver's own part and those of other ranks.

    Several passes may be under way at once, over tokens of different requests; they finish in the order in which they started.

    Args:
        local: the driver's part: the last stage, or its first share of that.
        ranks: the job.
        workers: the ranks that have the other parts.
        before: the rank that the last stage's input comes from; None if there is a single stage.
        carried: columns of hidden states that earlier stages give, which come along behind that input.
        order: places of the hidden states' columns in the order in which they were asked for, where those of earlier stages come
            first and the last stage's own follow; None if that is their order.
    """

    def __init__(
        self,
        local: CompiledModel,
        ranks: Ranks,
        *,
        workers: Sequence[int],
        before: int | None = None,
        carried: int = 0,
        order: Sequence[int] | None = None,
    ) -> None:
        self._local = local
        self._ranks = ranks
        self._workers = tuple(workers)
        self._before = before
        self._carried = carried
        self._order = None if order is None else np.asarray(order)
        self._caches = MirroredCaches()
        self._under_way: deque[StartedPass] = deque()
        self._states = torch.zeros((0, carried))
        self.vocab_size = local.vocab_size
        self.max_positions = local.max_positions
        self.max_pass_tokens = local.max_pass_tokens
        self.feature_size = local.feature_size if before is None else 0
        self.hidden_size = carried + local.hidden_size

    @property
    def kv_shape(self) -> KVShape:
        """Of the driver's own part of the cache."""
        return self._local.kv_shape

    @property
    def completes_batches(self) -> bool:
        """False: every rank needs all of a batch."""
        return False

    @property
    def tree_walker(self) -> TreeWalker | None:
        """As the last stage's: the logits are there."""
        return self._local.tree_walker

    @property
    def level_grower(self) -> LevelGrower | None:
        """None: one rank's part of a model grows nothing."""
        return None

    def start(self, batch: Batch, kv: KVStorage) -> StartedPass:
        """Set the other ranks to work on a pass."""
        batch = batch.copy()  # others are built before it is finished
        started = StartedPass(batch=batch, kv=kv)
        with interrupts_later():
            self._ranks.send_all(self._workers, RunPass(batch=batch, update=self._caches.update(kv)))
            self._under_way.append(started)
        return started

    def finish(self, started: StartedPass, features: Tensor | None = None) -> Tensor:
        """Run the driver's part of a pass that was started; as `CompiledModel.forward`.

        Raises:
            RankFailure: if another rank is gone, or doesn't answer.
        """
        # A start that Ctrl-C interrupted left a pass that nobody asks for.
        while self._under_way[0] is not started:
            self._finish_first()
        return self._finish_first(features)

    def drain(self) -> None:
        """Run the driver's part of all passes under way: the other ranks wait for it."""
        while self._under_way:
            self._finish_first()

    def _finish_first(self, features: Tensor | None = None) -> Tensor:
        with interrupts_later():
            started, failed = self._under_way.popleft(), True
            try:
                logits = self._run(started, features)
                failed = False
            finally:
                if failed:
                    self._under_way.clear()  # the other ranks' parts can't come to their end any more
        return logits

    def _run(self, started: StartedPass, features: Tensor | None) -> Tensor:
        if self._before is not None:
            width = self._local.feature_size
            received = self._ranks.receive_tensor(self._before, (started.batch.num_tokens, width + self._carried))
            features, self._states = received[:, :width].contiguous(), received[:, width:]
        with self._ranks.collectives():
            return self._local.forward(started.batch, started.kv, features)

    def forward(self, batch: Batch, kv: KVStorage, features: Tensor | None = None) -> Tensor:
        """See `CompiledModel.forward`."""
        return self.finish(self.start(batch, kv), features)

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> Tensor:
        """See `CompiledModel.hidden_states`; the last pass is the one that finished last."""
        parts = [self._states[torch.from_numpy(np.asarray(rows, dtype=np.int64))]] if self._carried else []
        if self._local.hidden_size:
            parts.append(self._local.hidden_states(rows))
        states = torch.cat(parts, dim=1)
        return states if self._order is None else states[:, self._order]
