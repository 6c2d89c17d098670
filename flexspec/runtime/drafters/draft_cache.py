"""The cache of a draft model, and the passes that fill it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Batch, Int32
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.lazy_memory import lazy_zeros
from flexspec.runtime.kv_cache import KVCache

Float32 = npt.NDArray[np.float32]


class Text(NamedTuple):
    """The next tokens of one request's text.

    Attributes:
        tokens: [n] at least one.
        states: [n, columns] the first columns of the tokens' features, the others being zero; None for a model that takes none.
    """

    tokens: Sequence[int]
    states: Float32 | None = None


class Level(NamedTuple):
    """Drafted nodes of one request that are fed together.

    Attributes:
        request_id: the request.
        depth: their distance from the root.
        first: place of the first of them in the request's tail; the others follow.
        tokens: [n] their tokens.
        masks: [n] the tail slots each of them sees, bit i for slot i of the tail, its own included.
        parents: [n] places of their parents in the level that was fed before, the root being alone in its own: the last columns
            of a node's features are the model's own hidden state there, the others are zero.
    """

    request_id: int
    depth: int
    first: int
    tokens: Sequence[int]
    masks: Sequence[int]
    parents: Sequence[int]


class Fed(NamedTuple):
    """What a pass says.

    Attributes:
        logits: [n, columns] after nodes of some requests, valid until the next pass.
        places: request → its nodes among these, by their places in its level, in the order of the rows; a root is alone in its level.
        rows: [n] the nodes' places in the pass.
    """

    logits: torch.Tensor
    places: Mapping[int, range]
    rows: Sequence[int]

    def without(self, request_ids: Collection[int]) -> "Fed | None":
        """What is said of other requests; None if there are none."""
        kept: list[int] = []
        start = 0
        for request_id, own in self.places.items():
            kept += range(start, start + len(own)) if request_id not in request_ids else ()
            start += len(own)
        if len(kept) in (0, start):
            return self if kept else None
        index = torch.tensor(kept).to(self.logits.device, non_blocking=True)
        places = {request_id: own for request_id, own in self.places.items() if request_id not in request_ids}
        return Fed(self.logits.index_select(0, index), places, [self.rows[place] for place in kept])


class _Part(NamedTuple):
    """One request's tokens in a pass, of which the last ones put out logits."""

    request_id: int
    tail_start: int
    tokens: Sequence[int]
    positions: Sequence[int]
    slots: range
    context_lens: Sequence[int]
    masks: Sequence[int]
    places: range  # of those that put out logits


class DraftCache:
    """Holds the texts of several requests and the drafted nodes behind them; a request's blocks are its own until it is released.

    Args:
        model: the draft model.
        max_requests: requests held at once.
        block_size: slots of a request, its text and its tail together.
    """

    def __init__(self, model: CompiledModel, *, max_requests: int, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        self.storage = KVStorage.of_requests(model.kv_shape, block_size, num_requests=max_requests)
        self._kv = KVCache(self.storage, blocks_per_request=self.storage.num_blocks // max_requests)
        self._held: set[int] = set()
        # Features of a pass over texts, and of one over levels: what is zero in one kind is never written.
        size = (model.max_pass_tokens, model.feature_size)
        self._text_features: Float32 = lazy_zeros(size, torch.float32).numpy()
        self._level_features: Float32 = lazy_zeros(size, torch.float32).numpy()
        self._first_rows: dict[int, int] = {}  # of a request in `_states`
        self._states: list[Float32] = []  # the model's own, at the nodes that were fed last

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

    def reserve(self, request_ids: Sequence[int], tails: Sequence[int]) -> tuple[Int32, Int32]:
        """Make room for tails that are written elsewhere.

        Args:
            request_ids: [R] the requests.
            tails: [R] slots of each.

        Returns:
            [R] where the tails begin, and [R, blocks] the block tables.
        """
        starts = [self._kv.reserve(request_id, tail) for request_id, tail in zip(request_ids, tails, strict=True)]
        return np.array(starts, dtype=np.int32), np.array([self._kv.block_table(request_id) for request_id in request_ids])

    def feed_texts(self, texts: Mapping[int, Text], *, keeps_states: bool = True) -> Iterator[Fed]:
        """Append to the requests' texts, as many requests a pass as fit; each request's last token is its root.

        Args:
            texts: what they grow by.
            keeps_states: whether the model's hidden states at the roots are needed for `feed_levels`.

        Yields:
            What follows each root, once.
        """
        self._kv.apply_moves()
        self._states = []
        self._first_rows = {request_id: row for row, request_id in enumerate(texts)}
        items = list(texts.items())
        for spans in _passes([len(text.tokens) for text in texts.values()], self._model.max_pass_tokens):
            parts: list[_Part] = []
            row = 0
            for item, span in spans:
                request_id, text = items[item]
                parts.append(self._text_part(request_id, text.tokens, span))
                if text.states is not None:
                    self._text_features[row : row + len(span), : text.states.shape[1]] = text.states[span.start : span.stop]
                row += len(span)
            fed = self._forward(parts, self._text_features, keeps_states=keeps_states)
            for part in parts:
                self._kv.commit(part.request_id, range(len(part.tokens)))
            if fed.places:
                yield fed

    def feed_levels(self, levels: Sequence[Level]) -> Iterator[Fed]:
        """Write one level of each request behind its earlier ones.

        Yields:
            What follows the nodes: each of them once, in the order of the levels.
        """
        states: Float32 | None = None
        if self._states:
            before = self._states[0] if len(self._states) == 1 else np.concatenate(self._states)
            states = before.take([self._first_rows[level.request_id] + place for level in levels for place in level.parents], axis=0)
        self._states, self._first_rows, row = [], {}, 0
        for level in levels:
            self._first_rows[level.request_id] = row
            row += len(level.tokens)
            self._kv.reserve(level.request_id, level.first + len(level.tokens))
        row = 0
        for spans in _passes([len(level.tokens) for level in levels], self._model.max_pass_tokens):
            parts = [self._level_part(levels[item], span) for item, span in spans]
            count = sum(len(span) for _, span in spans)
            if states is not None:
                self._level_features[:count, -states.shape[1] :] = states[row : row + count]
            row += count
            yield self._forward(parts, self._level_features, keeps_states=True)

    def _text_part(self, request_id: int, tokens: Sequence[int], span: range) -> _Part:
        start = self._kv.reserve(request_id, len(span))
        stop = start + len(span)
        return _Part(
            request_id=request_id,
            tail_start=stop,
            tokens=tokens[span.start : span.stop],
            positions=range(start, stop),
            slots=range(start, stop),
            context_lens=range(start + 1, stop + 1),
            masks=[0] * len(span),
            places=range(span.stop == len(tokens)),
        )

    def _level_part(self, level: Level, span: range) -> _Part:
        length = self._kv.length(level.request_id)
        count, first = len(span), length + level.first + span.start
        return _Part(
            request_id=level.request_id,
            tail_start=length,
            tokens=level.tokens[span.start : span.stop],
            positions=[length - 1 + level.depth] * count,
            slots=range(first, first + count),
            context_lens=[length] * count,
            masks=level.masks[span.start : span.stop],
            places=span,
        )

    def _forward(self, parts: Sequence[_Part], features: Float32, *, keeps_states: bool) -> Fed:
        """One pass, with the first rows of `features` for a model that takes some."""
        requests, tail_starts, tokens, positions, slots, context_lens, masks, places = zip(*parts, strict=True)
        rows: list[int] = []
        outputs: list[int] = []
        for row, (own, put_out) in enumerate(zip(tokens, places, strict=True)):
            rows += [row] * len(own)
            outputs += range(len(rows) - len(put_out), len(rows))
        batch = Batch(
            token_ids=np.array([*chain.from_iterable(tokens)], dtype=np.int64),
            positions=np.array([*chain.from_iterable(positions)], dtype=np.int64),
            request_rows=np.array(rows, dtype=np.int32),
            slots=np.array([*chain.from_iterable(slots)], dtype=np.int32),
            context_lens=np.array([*chain.from_iterable(context_lens)], dtype=np.int32),
            tail_starts=np.array(tail_starts, dtype=np.int32),
            tail_bits=_bit_rows([*chain.from_iterable(masks)]),
            block_tables=np.array([self._kv.block_table(request_id) for request_id in requests]),
            output_rows=np.array(outputs, dtype=np.int32),
        )
        given = torch.from_numpy(features[: len(rows)]) if self._model.feature_size else None
        logits = self._model.forward(batch, self.storage, given)
        if given is not None and outputs and keeps_states:
            self._states.append(self._model.hidden_states(outputs).numpy())
        return Fed(logits, {request_id: put_out for request_id, put_out in zip(requests, places, strict=True) if put_out}, outputs)


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


def _bit_rows(masks: Sequence[int]) -> Int32:
    """[masks, words] int32: bit i of a mask is bit i % 32 of word i // 32."""
    words = (max(masks).bit_length() + 31) // 32
    if not words:
        return np.zeros((len(masks), 0), dtype=np.int32)
    packed = bytearray().join([mask.to_bytes(4 * words, "little") for mask in masks])  # a bytearray, so that the array is writable
    return np.frombuffer(packed, dtype="<i4").reshape(len(masks), words)
