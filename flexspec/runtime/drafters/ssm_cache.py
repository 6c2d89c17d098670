"""The cache of a small speculative model, and the passes that fill it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flexspec.codegen.batch import Batch, Int32
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.runtime.kv_cache import KVCache


@dataclass(frozen=True, kw_only=True)
class Level:
    """Drafted nodes of one request that are fed together.

    Attributes:
        request_id: the request.
        depth: their distance from the root.
        first: place of the first of them in the request's tail; the others follow.
        tokens: [n] their tokens.
        masks: [n] the tail slots each of them sees, bit i for slot i of the tail, its own included.
    """

    request_id: int
    depth: int
    first: int
    tokens: Sequence[int]
    masks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One request's tokens in a pass."""

    request_id: int
    tail_start: int
    tokens: Sequence[int]
    positions: Sequence[int]
    slots: Sequence[int]
    context_lens: Sequence[int]
    masks: Sequence[int]
    outputs: Sequence[int]


class SsmCache:
    """Holds the texts of several requests and the drafted nodes behind them: one block a request.

    Args:
        model: the small model.
        max_requests: requests held at once.
        block_size: slots of a request, its text and its tail together.
    """

    def __init__(self, model: CompiledModel, *, max_requests: int, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        self.storage = KVStorage(model.kv_shape, num_blocks=max_requests, block_size=block_size)
        self._kv = KVCache(self.storage)
        self._held: set[int] = set()

    def admit(self, request_id: int) -> bool:
        """Make room for a request unless it has some; False if all blocks are taken."""
        if request_id not in self._held and self._kv.can_allocate(self._block_size):
            self._kv.allocate(request_id, self._block_size)
            self._held.add(request_id)
        return request_id in self._held

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._held.discard(request_id)
        self._kv.free(request_id)

    def length(self, request_id: int) -> int:
        """Tokens of the request's text that are held."""
        return self._kv.length(request_id)

    def settle(self, request_id: int, path: Sequence[int], limit: int) -> None:
        """Turn the tail slots `path` into text, drop the others, and keep no more than `limit` tokens."""
        self._kv.commit(request_id, path)
        self._kv.rollback(request_id, min(limit, self._kv.length(request_id)))

    def feed_texts(self, texts: dict[int, Sequence[int]]) -> Iterator[tuple[int, torch.Tensor]]:
        """Append tokens to the requests' texts, as many requests a pass as fit.

        Yields:
            Each request's id and the logits [vocab] after its last token, valid until the next item is asked for.
        """
        self._kv.apply_moves()
        left = {request_id: list(tokens) for request_id, tokens in texts.items()}
        while left:
            room = self._model.max_pass_tokens
            parts: list[_Part] = []
            for request_id, tokens in left.items():
                if room:
                    parts.append(self._text_part(request_id, tokens[:room], is_end=len(tokens) <= room))
                    room -= len(parts[-1].tokens)
            logits = self._forward(parts)
            ended = []
            for part in parts:
                count = len(part.tokens)
                self._kv.commit(part.request_id, range(count))
                left[part.request_id] = left[part.request_id][count:]
                if part.outputs:
                    del left[part.request_id]
                    ended.append(part.request_id)
            for row, request_id in enumerate(ended):
                yield request_id, logits[row]

    def feed_levels(self, levels: Sequence[Level]) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Write one level of each request behind its earlier ones.

        Yields:
            Each node's request id, its place in its level and the logits [vocab] after it, valid until the next item is
            asked for.
        """
        for level in levels:
            self._kv.reserve(level.request_id, level.first + len(level.tokens))
        nodes = [(level, place) for level in levels for place in range(len(level.tokens))]
        for start in range(0, len(nodes), self._model.max_pass_tokens):
            chunk = nodes[start : start + self._model.max_pass_tokens]
            parts = []
            for level in levels:
                places = [place for other, place in chunk if other is level]
                if places:
                    parts.append(self._level_part(level, places))
            logits = self._forward(parts)
            for row, (level, place) in enumerate(chunk):
                yield level.request_id, place, logits[row]

    def _text_part(self, request_id: int, tokens: Sequence[int], *, is_end: bool) -> _Part:
        count = len(tokens)
        start = self._kv.reserve(request_id, count)
        slots = range(start, start + count)
        return _Part(
            request_id=request_id,
            tail_start=start + count,
            tokens=tokens,
            positions=slots,
            slots=slots,
            context_lens=range(start + 1, start + count + 1),
            masks=[0] * count,
            outputs=[count - 1] if is_end else [],
        )

    def _level_part(self, level: Level, places: Sequence[int]) -> _Part:
        length = self._kv.length(level.request_id)
        count = len(places)
        return _Part(
            request_id=level.request_id,
            tail_start=length,
            tokens=[level.tokens[place] for place in places],
            positions=[length - 1 + level.depth] * count,
            slots=[length + level.first + place for place in places],
            context_lens=[length] * count,
            masks=[level.masks[place] for place in places],
            outputs=range(count),
        )

    def _forward(self, parts: Sequence[_Part]) -> torch.Tensor:
        words = max((mask.bit_length() + 31) // 32 for part in parts for mask in part.masks)
        starts = np.cumsum([0, *(len(part.tokens) for part in parts)])
        batch = Batch(
            token_ids=np.array([token for part in parts for token in part.tokens], dtype=np.int64),
            positions=np.array([position for part in parts for position in part.positions], dtype=np.int64),
            request_rows=np.repeat(np.arange(len(parts), dtype=np.int32), np.diff(starts)),
            slots=np.array([slot for part in parts for slot in part.slots], dtype=np.int32),
            context_lens=np.array([length for part in parts for length in part.context_lens], dtype=np.int32),
            tail_starts=np.array([part.tail_start for part in parts], dtype=np.int32),
            tail_bits=_bit_rows([mask for part in parts for mask in part.masks], words),
            block_tables=np.stack([self._kv.block_table(part.request_id) for part in parts]),
            output_rows=np.array([starts[row] + place for row, part in enumerate(parts) for place in part.outputs], dtype=np.int32),
        )
        return self._model.forward(batch, self.storage)


def _bit_rows(masks: Sequence[int], words: int) -> Int32:
    """[masks, words] int32: bit i of a mask is bit i % 32 of word i // 32."""
    if not words:
        return np.zeros((len(masks), 0), dtype=np.int32)
    packed = bytearray().join(mask.to_bytes(4 * words, "little") for mask in masks)  # a bytearray, so that the array is writable
    return np.frombuffer(packed, dtype="<i4").reshape(len(masks), words)
