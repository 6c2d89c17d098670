"""The cache of a draft model, and the passes that fill it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flexspec.codegen.batch import Batch, Int32
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.runtime.kv_cache import KVCache


@dataclass(frozen=True, kw_only=True)
class Text:
    """The next tokens of one request's text.

    Attributes:
        tokens: [n] at least one.
        features: [n, feature_size] float32 of the tokens; None for a model that takes none.
    """

    tokens: Sequence[int]
    features: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Level:
    """Drafted nodes of one request that are fed together.

    Attributes:
        request_id: the request.
        depth: their distance from the root.
        first: place of the first of them in the request's tail; the others follow.
        tokens: [n] their tokens.
        masks: [n] the tail slots each of them sees, bit i for slot i of the tail, its own included.
        features: [n, hidden_size] float32 the model's own hidden states for the tokens; None for a model that takes none.
    """

    request_id: int
    depth: int
    first: int
    tokens: Sequence[int]
    masks: Sequence[int]
    features: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What a pass says about nodes of one request.

    Attributes:
        request_id: the request.
        places: of the nodes in their level; the root is alone in its own.
        logits: [n, columns] after the nodes, valid until the next pass.
        states: [n, hidden_size] the model's hidden states of the nodes; None for a model that takes no features.
    """

    request_id: int
    places: range
    logits: torch.Tensor
    states: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One request's tokens in a pass, of which the last `num_outputs` put out logits."""

    request_id: int
    tail_start: int
    tokens: Sequence[int]
    positions: Int32
    slots: Int32
    context_lens: Int32
    masks: Sequence[int]
    features: torch.Tensor | None
    places: range
    num_outputs: int


class DraftCache:
    """Holds the texts of several requests and the drafted nodes behind them: one block a request.

    Args:
        model: the draft model.
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

    def feed_texts(self, texts: Mapping[int, Text]) -> Iterator[Fed]:
        """Append to the requests' texts, as many requests a pass as fit; each request's last token is its root.

        Yields:
            What follows each root, once.
        """
        self._kv.apply_moves()
        items = list(texts.items())
        for spans in _passes([len(text.tokens) for _, text in items], self._model.max_pass_tokens):
            parts = [self._text_part(*items[item], span) for item, span in spans]
            logits, states = self._forward(parts)
            for part in parts:
                self._kv.commit(part.request_id, range(len(part.tokens)))
            yield from _by_request(parts, logits, states)

    def feed_levels(self, levels: Sequence[Level]) -> Iterator[Fed]:
        """Write one level of each request behind its earlier ones.

        Yields:
            What follows the nodes: each of them once, in the order of the levels.
        """
        for level in levels:
            self._kv.reserve(level.request_id, level.first + len(level.tokens))
        for spans in _passes([len(level.tokens) for level in levels], self._model.max_pass_tokens):
            parts = [self._level_part(levels[item], span) for item, span in spans]
            yield from _by_request(parts, *self._forward(parts))

    def _text_part(self, request_id: int, text: Text, span: range) -> _Part:
        count = len(span)
        start = self._kv.reserve(request_id, count)
        slots = np.arange(start, start + count, dtype=np.int32)
        return _Part(
            request_id=request_id,
            tail_start=start + count,
            tokens=text.tokens[span.start : span.stop],
            positions=slots,
            slots=slots,
            context_lens=slots + 1,
            masks=(),
            features=None if text.features is None else text.features[span.start : span.stop],
            places=range(1),
            num_outputs=int(span.stop == len(text.tokens)),
        )

    def _level_part(self, level: Level, span: range) -> _Part:
        length = self._kv.length(level.request_id)
        count, first = len(span), length + level.first + span.start
        return _Part(
            request_id=level.request_id,
            tail_start=length,
            tokens=level.tokens[span.start : span.stop],
            positions=np.full(count, length - 1 + level.depth, dtype=np.int32),
            slots=np.arange(first, first + count, dtype=np.int32),
            context_lens=np.full(count, length, dtype=np.int32),
            masks=level.masks[span.start : span.stop],
            features=None if level.features is None else self._own(level.features[span.start : span.stop]),
            places=span,
            num_outputs=count,
        )

    def _own(self, states: torch.Tensor) -> torch.Tensor:
        """The model's own states as features: they are the last columns."""
        return torch.nn.functional.pad(states, (self._model.feature_size - states.shape[1], 0))

    def _forward(self, parts: Sequence[_Part]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One pass: the logits of its outputs, and for a model that takes features its hidden states there."""
        counts = [len(part.tokens) for part in parts]
        ends = np.cumsum(counts, dtype=np.int32)
        batch = Batch(
            token_ids=np.array([token for part in parts for token in part.tokens], dtype=np.int64),
            positions=np.concatenate([part.positions for part in parts], dtype=np.int64),
            request_rows=np.repeat(np.arange(len(parts), dtype=np.int32), counts),
            slots=np.concatenate([part.slots for part in parts]),
            context_lens=np.concatenate([part.context_lens for part in parts]),
            tail_starts=np.array([part.tail_start for part in parts], dtype=np.int32),
            tail_bits=_bit_rows([mask for part in parts for mask in part.masks] or [0] * int(ends[-1])),
            block_tables=np.stack([self._kv.block_table(part.request_id) for part in parts]),
            output_rows=np.concatenate(
                [np.arange(end - part.num_outputs, end, dtype=np.int32) for part, end in zip(parts, ends.tolist(), strict=True)]
            ),
        )
        features = [part.features for part in parts if part.features is not None]
        if not features:
            return self._model.forward(batch, self.storage), None
        logits = self._model.forward(batch, self.storage, torch.cat(features))
        return logits, self._model.hidden_states(batch.output_rows)


def _passes(sizes: Sequence[int], most: int) -> Iterator[list[tuple[int, range]]]:
    """Share out items of these sizes, in order, among passes of `most` tokens: the items in each, and which part of them."""
    spans: list[tuple[int, range]] = []
    room = most
    for item, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(start + room, size)
            spans.append((item, range(start, stop)))
            room -= stop - start
            start = stop
            if not room:
                yield spans
                spans, room = [], most
    if spans:
        yield spans


def _by_request(parts: Sequence[_Part], logits: torch.Tensor, states: torch.Tensor | None) -> Iterator[Fed]:
    end = 0
    for part in parts:
        begin, end = end, end + part.num_outputs
        if part.num_outputs:
            own = None if states is None else states[begin:end]
            yield Fed(request_id=part.request_id, places=part.places, logits=logits[begin:end], states=own)


def _bit_rows(masks: Sequence[int]) -> Int32:
    """[masks, words] int32: bit i of a mask is bit i % 32 of word i // 32."""
    words = (max(mask.bit_length() for mask in masks) + 31) // 32
    if not words:
        return np.zeros((len(masks), 0), dtype=np.int32)
    packed = bytearray().join(mask.to_bytes(4 * words, "little") for mask in masks)  # a bytearray, so that the array is writable
    return np.frombuffer(packed, dtype="<i4").reshape(len(masks), words)
