"""The probe of row invariance: does a row's result depend on what shares its pass?"""

from dataclasses import dataclass

import numpy as np
import torch

from flexspec.codegen.batch import Batch, Int64, chain_batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage

_PREFIX = 54
_LENGTH = 75
"""The tokens that are compared, 21 of them, cross the 64 keys that kernels like to take at a time."""
_SLOTS = 128
_CHUNKS = (1, 8, 13)


@dataclass(frozen=True, kw_only=True)
class RowInvariance:
    """What the probe saw.

    Attributes:
        chains: the logits of a text are bitwise equal whatever chunks it is fed in.
        trees: and so are those of tokens fed as one branch of a tree.
        largest_difference: of two logits that should be equal.
    """

    chains: bool
    trees: bool
    largest_difference: float

    def __str__(self) -> str:
        if self.chains and self.trees:
            return "bitwise, in chains and in trees"
        where = "in chains only" if self.chains else "no"
        return f"{where} (largest difference of logits {self.largest_difference:.1e})"


def random_features(model: CompiledModel, count: int) -> torch.Tensor | None:
    """Features for `count` tokens, always the same; None for a model that takes none."""
    if not model.feature_size:
        return None
    return torch.randn((count, model.feature_size), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class _Text:
    """Token ids [length] and their features [length, feature_size]."""

    ids: Int64
    features: torch.Tensor | None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> "_Text":
        return _Text(self.ids[part], None if self.features is None else self.features[part])


def probe_row_invariance(model: CompiledModel) -> RowInvariance:
    """Feed one text in several chunkings, and as a branch of a tree, and compare the logits bit for bit."""
    most = model.max_pass_tokens
    length = min(_LENGTH, model.max_positions or _LENGTH)
    text = _Text((np.arange(length, dtype=np.int64) * 7919 + 13) % model.vocab_size, random_features(model, length))
    prefix = length * _PREFIX // _LENGTH
    expected = _in_chunks(model, text, prefix, most)
    chains = max(_distance(expected, _in_chunks(model, text, prefix, chunk)) for chunk in _CHUNKS if chunk <= most)
    branch = min(length - prefix, most // 2)
    trees = _distance(expected[:branch], _as_branch(model, text[: prefix + branch], prefix)) if branch else 0.0
    return RowInvariance(chains=chains == 0, trees=trees == 0, largest_difference=max(chains, trees))


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def _in_chunks(model: CompiledModel, text: _Text, prefix: int, chunk: int) -> torch.Tensor:
    """Logits of the tokens after the first `prefix`, which are fed at once, and the others `chunk` at a time."""
    kv = _with_prefix(model, text[:prefix])
    return torch.cat([_feed(model, text[start : start + chunk], start, kv) for start in range(prefix, len(text), chunk)])


def _with_prefix(model: CompiledModel, text: _Text) -> KVStorage:
    kv = KVStorage.of_requests(model.kv_shape, _SLOTS)
    for start in range(0, len(text), model.max_pass_tokens):
        _feed(model, text[start : start + model.max_pass_tokens], start, kv)
    return kv


def _feed(model: CompiledModel, part: _Text, start: int, kv: KVStorage) -> torch.Tensor:
    return model.forward(chain_batch(part.ids, start=start, block_table=kv.block_table), kv, part.features).clone()


def _as_branch(model: CompiledModel, text: _Text, committed: int) -> torch.Tensor:
    """The text's second part as every other node of a two-branched tree; the other branch holds other tokens."""
    kv = _with_prefix(model, text[:committed])
    branch = text[committed:]
    count = len(branch)
    tokens = np.stack([(branch.ids + 1) % model.vocab_size, branch.ids], axis=1).reshape(-1)
    features = None if branch.features is None else torch.stack([branch.features + 1, branch.features], dim=1).flatten(0, 1)
    bits = np.zeros((2 * count, 2), dtype=np.uint32)
    for node in range(2 * count):
        for ancestor in range(node % 2, node + 1, 2):
            bits[node, ancestor // 32] |= np.uint32(1 << (ancestor % 32))
    depth = np.repeat(np.arange(count), 2)
    batch = Batch(
        token_ids=tokens,
        positions=committed + depth,
        request_rows=np.zeros(2 * count, dtype=np.int32),
        slots=np.arange(committed, committed + 2 * count, dtype=np.int32),
        context_lens=np.full(2 * count, committed, dtype=np.int32),
        tail_starts=np.array([committed], dtype=np.int32),
        tail_bits=bits.view(np.int32),
        block_tables=kv.block_table,
        output_rows=np.arange(1, 2 * count, 2, dtype=np.int32),
    )
    rows = model.forward(batch, kv, features)
    # A pipeline stage before the last gives the rows of all tokens.
    return (rows[batch.output_rows] if len(rows) == batch.num_tokens else rows).clone()
