"""Drafts with a head on the LLM's hidden states (EAGLE: Li et al., 2024)."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.runtime.candidates import Int64
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.draft_cache import Text
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.drafters.pending_states import PendingStates


class HeadDrafter(LevelDrafter):
    """Drafts with a model that is fed, for each position of the text, the token after it and the LLM's hidden states there.

    So it runs over the text without its first token. A drafted node is fed with the head's own hidden state at the node's
    parent; what was drafted and became text is fed once more, with the LLM's states. A feature has columns for both, of which
    one part is zero.

    Args:
        name: as `LevelDrafter` takes it, like all that is not named here.
        model: the compiled head; the last columns of its features are for its own hidden states.
        columns: of the LLM's hidden states, those that the first columns of the features are.
    """

    _num_skipped = 1

    def __init__(
        self,
        name: str,
        model: CompiledModel,
        *,
        columns: Sequence[int],
        max_requests: int,
        block_size: int,
        alpha: float | None = None,
        token_ids: Int64 | None = None,
    ) -> None:
        assert model.feature_size == len(columns) + model.hidden_size, f"{model.feature_size} columns of features"
        super().__init__(name, model, max_requests=max_requests, block_size=block_size, alpha=alpha, token_ids=token_ids)
        self._columns = columns
        is_run = list(columns) == list(range(columns[0], columns[0] + len(columns)))
        self._selection = slice(columns[0], columns[0] + len(columns)) if is_run else list(columns)  # a slice is a view
        self._states = PendingStates()

    def again(self, *, max_requests: int, block_size: int, alpha: float | None = None) -> Self:
        """As `LevelDrafter.again`."""
        return type(self)(
            self.name,
            self._model,
            columns=self._columns,
            max_requests=max_requests,
            block_size=block_size,
            alpha=alpha,
            token_ids=self._token_ids,
        )

    def read_states(self, request_id: int, start: int, states: torch.Tensor) -> None:
        """As `StateReader.read_states`."""
        self._states.add(request_id, start, states)

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        super().release(request_id)
        self._states.release(request_id)

    def _catch_up(self, requests: Sequence[DraftRequest]) -> Mapping[int, Text]:
        texts: dict[int, Text] = {}
        for request in requests:
            request_id, length = request.request_id, len(request.tokens) - 1
            self._end_draft(request)
            # The last token is always fed, for the logits after it.
            self._cache.settle(request_id, (), length - 1)
            first = self._cache.length(request_id)
            states = self._states.between(request_id, first, length)
            missing = request.tokens[first + 1 :]
            if states is not None and self._can_be_fed(missing):
                texts[request_id] = Text(missing, states[:, self._selection])
        return texts
