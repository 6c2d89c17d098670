"""Drafts with a small speculative model (SSM)."""

from collections.abc import Mapping, Sequence

from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.draft_cache import Text
from flexspec.runtime.drafters.level_drafter import LevelDrafter


class SsmDrafter(LevelDrafter):
    """Drafts with a small model that reads the text as the LLM does; its arguments are those of `LevelDrafter`.

    What was drafted and became text is kept in its cache, the rest is dropped, what is missing is fed.
    """

    def _catch_up(self, requests: Sequence[DraftRequest]) -> Mapping[int, Text]:
        texts: dict[int, Text] = {}
        for request in requests:
            request_id, tokens = request.request_id, request.tokens
            draft = self._end_draft(request)
            # The last token is always fed, for the logits after it.
            path = draft.accepted(tokens[self._cache.length(request_id) : -1]) if draft is not None else ()
            self._cache.settle(request_id, path, len(tokens) - 1)
            missing = tokens[self._cache.length(request_id) :]
            if self._can_be_fed(missing):
                texts[request_id] = Text(missing)
        return texts
