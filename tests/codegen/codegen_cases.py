"""Tiny models compiled for either CPU target, and their logits for chains, batches and trees."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flexspec.codegen.batch import Batch, Int64, chain_batch
from flexspec.codegen.compile import compile_for_cpu
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph
from graph_cases import served
from tiny_models import Family

TARGETS = ("cpu-native", "cpu-torch")
DTYPES = (torch.float32, torch.bfloat16)


def compiled(
    family: Family, *, target: str, dtype: torch.dtype, store: WeightStore | None = None, max_pass_tokens: int = 64, **overrides: object
) -> tuple[PreTrainedModel, LoweredModel]:
    """A tiny model, and what was made of it; fails if the target isn't the one asked for."""
    module, graph = served(family, **overrides)
    return module, compile_graph(graph, target=target, dtype=dtype, store=store, max_pass_tokens=max_pass_tokens)


def compile_graph(
    graph: ModelGraph, *, target: str, dtype: torch.dtype, store: WeightStore | None = None, max_pass_tokens: int = 64
) -> LoweredModel:
    model = compile_for_cpu(
        graph,
        dtype=dtype,
        max_positions=None,
        max_pass_tokens=max_pass_tokens,
        store=store or WeightStore(),
        native=target == "cpu-native",
    )
    assert model.lowering.target == target, model.lowering.reason
    return model


def rounded_reference(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in float32 with its weights rounded to `dtype`."""
    return module if dtype == torch.float32 else copy.deepcopy(module).to(dtype).float()


def storage(model: LoweredModel, slots: int, *, block_size: int | None = None) -> KVStorage:
    size = block_size or slots
    return KVStorage(model.kv_shape, num_blocks=-(-slots // size), block_size=size)


def in_chunks(model: LoweredModel, ids: Int64, chunk: int) -> Tensor:
    """Logits [tokens, vocab] of a text fed in chunks."""
    kv = storage(model, len(ids))
    starts = range(0, len(ids), chunk)
    return torch.cat([model.forward(chain_batch(ids[start : start + chunk], start=start), kv).clone() for start in starts])


def in_batch(model: LoweredModel, texts: Sequence[Int64], chunk: int, *, block_size: int) -> list[Tensor]:
    """Logits of texts fed together, `chunk` tokens of each a pass, with their blocks interleaved in the cache."""
    blocks = -(-max(map(len, texts)) // block_size)
    tables = np.arange(len(texts) * blocks, dtype=np.int32).reshape(blocks, len(texts)).T.copy()
    kv = KVStorage(model.kv_shape, num_blocks=tables.size, block_size=block_size)
    rows: list[list[Tensor]] = [[] for _ in texts]
    for start in range(0, max(map(len, texts)), chunk):
        parts = {row: text[start : start + chunk] for row, text in enumerate(texts) if start < len(text)}
        slots = np.concatenate([np.arange(start, start + len(part), dtype=np.int32) for part in parts.values()])
        batch = Batch(
            token_ids=np.concatenate(list(parts.values())),
            positions=slots.astype(np.int64),
            request_rows=np.concatenate([np.full(len(part), row, dtype=np.int32) for row, part in parts.items()]),
            slots=slots,
            context_lens=slots + 1,
            tail_starts=np.zeros(len(texts), dtype=np.int32),
            tail_bits=np.zeros((len(slots), 0), dtype=np.int32),
            block_tables=tables,
            output_rows=np.arange(len(slots), dtype=np.int32),
        )
        logits = model.forward(batch, kv).clone()
        for row, part in zip(parts, logits.split([len(part) for part in parts.values()]), strict=True):
            rows[row].append(part)
    return [torch.cat(parts) for parts in rows]


def as_tree(model: LoweredModel, prompt: Int64, nodes: Int64, parents: Sequence[int]) -> Tensor:
    """Logits [nodes, vocab] of a tree after a committed prompt; a root's parent is -1."""
    kv = storage(model, len(prompt) + len(nodes))
    if len(prompt):
        model.forward(chain_batch(prompt), kv)
    bits = np.zeros((len(nodes), -(-len(nodes) // 32)), dtype=np.uint32)
    depth = np.zeros(len(nodes), dtype=np.int64)
    for node, parent in enumerate(parents):
        if parent >= 0:
            bits[node], depth[node] = bits[parent], depth[parent] + 1
        bits[node, node // 32] |= np.uint32(1 << (node % 32))
    batch = Batch(
        token_ids=nodes,
        positions=len(prompt) + depth,
        request_rows=np.zeros(len(nodes), dtype=np.int32),
        slots=np.arange(len(prompt), len(prompt) + len(nodes), dtype=np.int32),
        context_lens=np.full(len(nodes), len(prompt), dtype=np.int32),
        tail_starts=np.array([len(prompt)], dtype=np.int32),
        tail_bits=bits.view(np.int32),
        block_tables=np.zeros((1, 1), dtype=np.int32),
        output_rows=np.arange(len(nodes), dtype=np.int32),
    )
    return model.forward(batch, kv).clone()


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root to `node`."""
    return [*(path(parents, parents[node]) if parents[node] >= 0 else []), node]


def text(length: int, seed: int = 0) -> Int64:
    return np.random.default_rng(seed).integers(3, 288, length)
