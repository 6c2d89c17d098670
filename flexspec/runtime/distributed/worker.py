"""A rank that runs its part of every pass at its driver's command."""

from typing import Any

import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.errors import UsageError
from flexspec.runtime.distributed.commands import CacheUpdate, Finish, RunPass
from flexspec.runtime.distributed.interrupts import interrupts_ignored
from flexspec.runtime.distributed.rank_failure import RankFailure, memory_told
from flexspec.runtime.distributed.ranks import Ranks


class Worker:
    """Runs a part of a model.

    Args:
        model: the part.
        ranks: the job.
        driver: the rank that commands.
        before: the rank that its input comes from; None for a first stage.
        after: the rank that its result goes to; None if nobody wants it, as of a share of the last stage.
        carried: columns of hidden states that stages before it give, which come along behind its input.
    """

    def __init__(
        self, model: CompiledModel, ranks: Ranks, *, driver: int, before: int | None = None, after: int | None = None, carried: int = 0
    ) -> None:
        self._model = model
        self._ranks = ranks
        self._driver = driver
        self._before = before
        self._after = after
        self._carried = carried
        self._caches: dict[int, KVStorage] = {}

    def serve(self) -> Any:
        """Obey until the driver says that the user's call has ended, and return its outcome.

        Raises:
            RankFailure: if a rank is gone or does not answer, or this one has no memory left.
        """
        with interrupts_ignored():
            while True:
                command = self._ranks.receive(self._driver, owed=False)
                if isinstance(command, Finish):
                    return command.outcome
                self._run(command)

    def _run(self, command: RunPass) -> None:
        with memory_told(self._ranks.rank):
            kv, batch = self._cache(command.update), command.batch
            self._answer(batch, kv)

    def _answer(self, batch: Batch, kv: KVStorage) -> None:
        features, states = None, None
        if self._before is not None:
            width = self._model.feature_size
            received = self._ranks.receive_tensor(self._before, (batch.num_tokens, width + self._carried))
            features, states = received[:, :width].contiguous(), received[:, width:]
        with self._ranks.collectives():
            result = self._model.forward(batch, kv, features)
        if self._after is not None:
            parts = [result.cpu()] if states is None else [result.cpu(), states]
            if self._model.hidden_size:
                parts.append(self._model.hidden_states(range(batch.num_tokens)).cpu())
            # A copy: the next pass overwrites the result, perhaps before it is sent.
            self._ranks.send_tensor(self._after, torch.cat(parts, dim=1) if len(parts) > 1 else result.cpu().clone())

    def _cache(self, update: CacheUpdate) -> KVStorage:
        for dropped in update.dropped:
            self._caches.pop(dropped, None)
        kv = self._caches.get(update.cache)
        if kv is None:
            try:
                kv = KVStorage(self._model.kv_shape, num_blocks=update.num_blocks, block_size=update.block_size)
            except UsageError as error:
                raise RankFailure(f"rank {self._ranks.rank} has no memory left: {error}") from error
            self._caches[update.cache] = kv
        for sources, destinations in update.moves:
            kv.move(sources, destinations)
        return kv
