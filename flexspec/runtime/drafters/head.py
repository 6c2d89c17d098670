"""Drafts with a head on the LLM's hidden states (EAGLE: Li et al., 2024)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.runtime.candidates import Int64
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.draft_cache import Text
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.drafters.pending_states import PendingStates

Encode = Callable[[torch.Tensor], torch.Tensor]
"""[n, hidden size of the LLM] hidden states → [n, feature_size] features of a head, both float32."""


class HeadDrafter(LevelDrafter):
    """Drafts with a model that is fed, for each position of the text, the token after it and a feature of the LLM there.

    So it runs over the text without its first token. A drafted node's feature is the head's own hidden state at the node's
    parent; what was drafted and became text is fed once more, with the LLM's features.

    Args:
        name: as `LevelDrafter` takes it, like all that is not named here.
        model: the compiled head: as many columns of features as of hidden states.
        encode: makes features of the LLM's hidden states.
    """

    _num_skipped = 1

    def __init__(
        self,
        name: str,
        model: CompiledModel,
        *,
        encode: Encode,
        max_requests: int,
        block_size: int,
        alpha: float | None = None,
        token_ids: Int64 | None = None,
    ) -> None:
        assert model.feature_size == model.hidden_size > 0, f"{model.feature_size} columns of features, {model.hidden_size} of states"
        super().__init__(name, model, max_requests=max_requests, block_size=block_size, alpha=alpha, token_ids=token_ids)
        self._encode = encode
        self._states = PendingStates()

    def again(self, *, max_requests: int, block_size: int, alpha: float | None = None) -> Self:
        """As `LevelDrafter.again`."""
        return type(self)(
            self.name,
            self._model,
            encode=self._encode,
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
        tokens: dict[int, Sequence[int]] = {}
        states: list[torch.Tensor] = []
        for request in requests:
            request_id, length = request.request_id, len(request.tokens) - 1
            self._end_draft(request)
            # The last token is always fed, for the logits after it.
            self._cache.settle(request_id, (), length - 1)
            first = self._cache.length(request_id)
            known = self._states.between(request_id, first, length)
            missing = request.tokens[first + 1 :]
            if known is not None and self._can_be_fed(missing):
                tokens[request_id] = missing
                states.append(known)
        if not states:
            return {}
        with torch.inference_mode():
            features = torch.split(self._encode(torch.cat(states)), [len(missing) for missing in tokens.values()])
        return {request_id: Text(tokens=missing, features=own) for (request_id, missing), own in zip(tokens.items(), features, strict=True)}
