"""Hands the LLM's hidden states of text that became final to the drafters that want them."""

from collections.abc import Sequence

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.errors import UsageError
from flexspec.runtime.drafters.checked import CheckedDrafter
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.request import Request
from flexspec.runtime.scheduler import PrefillChunk
from flexspec.runtime.token_tree import TokenTree


class StateFeed:
    """Commits a pass to the LLM's cache, and delivers the hidden states of what was committed.

    Without readers the model is never asked for states.

    Args:
        model: the compiled LLM.
        cache: its cache.
        readers: get the states.

    Raises:
        UsageError: if there are readers, and the model has no hidden states.
    """

    def __init__(self, model: CompiledModel, cache: KVCache, readers: Sequence[CheckedDrafter]) -> None:
        if readers and not model.hidden_size:
            raise UsageError(
                f"drafter {readers[0].name!r} reads hidden states, and the LLM was compiled without any: compile it with those that the "
                f"drafter wants, or leave the drafter out"
            )
        self._model = model
        self._cache = cache
        self._readers = readers
        self._first_rows: dict[int, int] = {}
        self._committed: list[tuple[int, int, list[int]]] = []

    def begin(self, trees: Sequence[tuple[Request, TokenTree]], chunks: Sequence[PrefillChunk]) -> None:
        """What the pass that now runs consists of, as `BatchBuilder.build` takes it."""
        self._committed = []
        if not self._readers:
            return
        self._first_rows, row = {}, 0
        sizes = [(request, len(tree.tokens)) for request, tree in trees] + [(chunk.request, chunk.count) for chunk in chunks]
        for request, size in sizes:
            self._first_rows[request.request_id] = row
            row += size

    def commit(self, request_id: int, path: Sequence[int]) -> None:
        """As `KVCache.commit`: the tokens at `path` of the request's part of the pass are final text."""
        if self._readers and path:
            first = self._first_rows[request_id]
            self._committed.append((request_id, self._cache.length(request_id), [first + place for place in path]))
        self._cache.commit(request_id, path)

    def deliver(self) -> None:
        """Read the states of all that was committed, in one call, before the model runs again, and hand them on."""
        if not self._committed:
            return
        states = self._model.hidden_states([row for _, _, rows in self._committed for row in rows])
        end = 0
        for request_id, start, rows in self._committed:
            begin, end = end, end + len(rows)
            # A reader may keep them, and should not keep those of other requests alive with them.
            own = states if len(self._committed) == 1 else states[begin:end].clone()
            for reader in self._readers:
                reader.read_states(request_id, start, own)
        self._committed = []
