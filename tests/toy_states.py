"""Toy models with hidden states: an LLM, and a head that reads and continues its states."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.runtime.drafters.head import HeadDrafter
from toy_model import Float32, ToyModel, _physical

State = tuple[int, int]
"""Whole numbers that float32 holds exactly."""
START: State = (1, 2)


def next_state(state: State, token: int) -> State:
    """The state of the LLM after one more token."""
    a, b = state
    return (31 * a + 7 * token + b + 1) % 4093, (17 * b + 13 * token + 5) % 4091


def state_after(path: Sequence[int]) -> State:
    """The state of the LLM after a text."""
    state = START
    for token in path:
        state = next_state(state, token)
    return state


COLUMNS = (2, 0)
"""Of the hidden states of `StatefulToy`: those that `ToyHead` reads, a + b and b."""


def encode(states: torch.Tensor) -> torch.Tensor:
    """[n, 2] hidden states that `ToyHead` reads → [n, 2] the state itself."""
    return torch.stack([states[:, 0] - states[:, 1], states[:, 1]], dim=1)


@lru_cache(maxsize=100_000)
def _logits_at(state: State, seed: int, vocab_size: int, sharpness: float) -> Float32:
    return (sharpness * np.random.default_rng([seed, *state]).standard_normal(vocab_size)).astype(np.float32)


class StatefulToy(ToyModel):
    """An LLM whose logits depend on its state alone; its hidden states are (b, 7, a + b)."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.hidden_size = 3
        self.num_reads = 0
        self._seen: list[State] = []

    def logits_of(self, path: Sequence[int]) -> Float32:
        state = state_after(path)
        self._seen.append(state)
        return _logits_at(state, self._seed, self.vocab_size, self._sharpness)

    def forward(self, batch: Batch, kv: KVStorage, features: None = None) -> torch.Tensor:
        self._seen = []
        logits = super().forward(replace(batch, output_rows=np.arange(batch.num_tokens, dtype=np.int32)), kv)
        self._of_pass = torch.tensor([(b, 7, a + b) for a, b in self._seen], dtype=torch.float32)
        return logits[torch.from_numpy(batch.output_rows).long()]

    def hidden_states(self, rows: Sequence[int]) -> torch.Tensor:
        self.num_reads += 1
        return self._of_pass[torch.as_tensor(rows).long()]


class ToyHead:
    """A head of `StatefulToy`, whose cache holds every token's id, position and feature.

    It asserts that what a token sees is a path from position 0 on. Without `noise` it is exact: it asserts that every feature
    follows from the one before, and continues the LLM's states. With `noise`, that share of the tokens, by all that they see,
    gets other logits and another state.
    """

    feature_size, hidden_size = 4, 2
    tree_walker = None
    level_grower = None

    def __init__(
        self,
        *,
        vocab_size: int,
        seed: int = 0,
        noise: float = 0.0,
        sharpness: float = 3.0,
        max_positions: int | None = None,
        max_pass_tokens: int = 64,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.max_pass_tokens = max_pass_tokens
        self.kv_shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=2, padded_head_dim=2, dtype=torch.float32)
        self.num_tokens = self.num_passes = 0
        self._seed, self._noise, self._sharpness = seed, noise, sharpness

    def forward(self, batch: Batch, kv: KVStorage, features: torch.Tensor | None = None) -> torch.Tensor:
        n = batch.num_tokens
        assert features is not None and features.shape == (n, 4) and features.dtype == torch.float32
        assert n <= self.max_pass_tokens and (self.max_positions is None or int(batch.positions.max()) < self.max_positions)
        assert ((features[:, :2] == 0).all(dim=1) | (features[:, 2:] == 0).all(dim=1)).all(), "the LLM's states, or its own"
        self.num_tokens += n
        self.num_passes += 1
        fed = encode(features[:, :2]) + features[:, 2:]
        for i in range(n):
            slot = int(_physical(batch, kv, int(batch.request_rows[i]), batch.slots[i : i + 1])[0])
            kv.keys[0, slot, 0] = torch.tensor([float(batch.token_ids[i]), float(batch.positions[i])])
            kv.values[0, slot, 0] = fed[i]
        states, logits = zip(*(self._row(batch, kv, i) for i in range(n)), strict=True)
        self._of_pass = torch.tensor(states, dtype=torch.float32)
        return torch.from_numpy(np.stack(logits)[batch.output_rows])

    def hidden_states(self, rows: Sequence[int]) -> torch.Tensor:
        return self._of_pass[torch.as_tensor(rows).long()]

    def _row(self, batch: Batch, kv: KVStorage, i: int) -> tuple[State, Float32]:
        row = int(batch.request_rows[i])
        tail = [bit for bit in range(32 * batch.tail_bits.shape[1]) if int(batch.tail_bits[i, bit // 32]) >> (bit % 32) & 1]
        slots = np.array([*range(int(batch.context_lens[i])), *(int(batch.tail_starts[row]) + bit for bit in tail)])
        assert slots[-1] == batch.slots[i]
        places = _physical(batch, kv, row, slots)
        tokens, positions = kv.keys.numpy()[0, places, 0].astype(int).T
        fed = kv.values.numpy()[0, places, 0].astype(int).T  # [2, seen]
        assert (positions == np.arange(len(slots))).all() and positions[-1] == batch.positions[i]
        followed = np.array(next_state((fed[0], fed[1]), tokens))
        state, seed = (int(followed[0, -1]), int(followed[1, -1])), self._seed
        if not self._noise:
            assert (fed[:, 1:] == followed[:, :-1]).all()
        elif zlib.crc32(tokens.tobytes() + fed.tobytes()) < self._noise * 2**32:
            state, seed = (state[0] + 1, state[1]), seed + 1
        return state, _logits_at(state, seed, self.vocab_size, self._sharpness)


def head_drafter(model: ToyHead, *, max_requests: int = 4, block_size: int = 512, **options) -> HeadDrafter:
    """Drafts with `model` for a `StatefulToy`."""
    return HeadDrafter("head", model, columns=COLUMNS, max_requests=max_requests, block_size=block_size, **options)
