"""A compiled model without weights whose logits depend on everything a token sees, so that cache bugs show."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.kv_storage import KVShape, KVStorage

Float32 = npt.NDArray[np.float32]


class ToyModel:
    """Logits are a hash of the root path that a token sees, read back from the cache.

    `forward` stores each token's id and position in its slot, collects what every output row sees through block table,
    context length and tail bits, and asserts that it is a path with positions 0, 1, 2, …: a wrong slot, position, bit
    row or stale entry fails there, or changes the logits.

    Args:
        vocab_size: columns of the logits.
        seed: models of different seeds are unrelated.
        sharpness: standard deviation of the logits.
        memory: how many of the path's last tokens the logits depend on; None for all. Small values give repeating text.
        noise: the share of paths on which the model follows `noise_seed` instead: a draft with the target's seed and
            noise 0.3 agrees with it on about 70% of the paths.
        noise_seed: the seed of the disagreement.
        max_positions: as in `CompiledModel`.
        max_pass_tokens: as in `CompiledModel`.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        seed: int = 0,
        sharpness: float = 3.0,
        memory: int | None = None,
        noise: float = 0.0,
        noise_seed: int = 1_000_003,
        max_positions: int | None = None,
        max_pass_tokens: int = 64,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.max_pass_tokens = max_pass_tokens
        self.kv_shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=2, padded_head_dim=2, dtype=torch.float32)
        self.feature_size = self.hidden_size = 0
        self.tree_walker = None
        self.level_grower = None
        self.completes_batches = False
        self.num_passes = 0
        self.num_tokens = 0
        self._seed = seed
        self._sharpness = sharpness
        self._memory = memory
        self._noise = noise
        self._noise_seed = noise_seed

    def logits_of(self, path: Sequence[int]) -> Float32:
        """[vocab_size] logits after the text `path`: the reference for everything the cache does."""
        seen = [int(token) for token in (path if self._memory is None else path[-self._memory :])]
        strays = self._noise and np.random.default_rng([self._noise_seed, 1, *seen, 1]).random() < self._noise
        generator = np.random.default_rng([self._noise_seed if strays else self._seed, 0, *seen, 1])
        return (self._sharpness * generator.standard_normal(self.vocab_size)).astype(np.float32)

    def forward(self, batch: Batch, kv: KVStorage, features: torch.Tensor | None = None) -> torch.Tensor:
        """One pass, as `CompiledModel` describes it."""
        n = batch.num_tokens
        assert features is None
        assert 0 < n <= self.max_pass_tokens, f"{n} tokens in a pass"
        assert int(batch.token_ids.min()) >= 0 and int(batch.token_ids.max()) < self.vocab_size, "token id out of range"
        assert self.max_positions is None or int(batch.positions.max()) < self.max_positions, "position out of range"
        self.num_passes += 1
        self.num_tokens += n
        keys = kv.keys.numpy()
        written = set()
        for i in range(n):
            slot = int(_physical(batch, kv, int(batch.request_rows[i]), batch.slots[i : i + 1])[0])
            assert slot not in written, "two tokens of a pass share a slot"
            written.add(slot)
            keys[0, slot, 0] = (batch.token_ids[i], batch.positions[i])
        rows = [self._row(batch, kv, int(i)) for i in batch.output_rows]
        return torch.from_numpy(np.stack(rows)) if rows else torch.zeros((0, self.vocab_size))

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> torch.Tensor:
        raise AssertionError("a toy has no hidden states")

    def _row(self, batch: Batch, kv: KVStorage, i: int) -> Float32:
        row, own = int(batch.request_rows[i]), int(batch.slots[i])
        slots = list(range(int(batch.context_lens[i])))
        for bit in range(32 * batch.tail_bits.shape[1]):
            if int(batch.tail_bits[i, bit // 32]) >> (bit % 32) & 1:
                slots.append(int(batch.tail_starts[row]) + bit)
        assert slots[-1] == own, f"a token in slot {own} sees the slots {slots}"
        seen = kv.keys.numpy()[0, _physical(batch, kv, row, np.array(slots)), 0]
        assert seen[:, 1].tolist() == list(range(len(slots))), f"positions seen: {seen[:, 1].tolist()}"
        assert len(slots) - 1 == int(batch.positions[i])
        return self.logits_of(seen[:, 0].astype(int).tolist())


def _physical(batch: Batch, kv: KVStorage, row: int, slots: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    blocks = batch.block_tables[row, slots // kv.block_size]
    assert 0 <= blocks.min() and blocks.max() < kv.num_blocks, f"blocks {blocks} of {kv.num_blocks}"
    return blocks * kv.block_size + slots % kv.block_size
