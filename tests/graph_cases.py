"""Captured tiny models, and how to run their graphs at any stage of the pipeline."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from transformers import PreTrainedModel

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelFacts, ModelGraph, fake
from flexspec.ir.ops import ATTENTION
from flexspec.passes.attention_pattern import recognise_attention
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from tiny_models import Family, random_prompt, tiny


@cache
def _captured(family: Family, overrides: tuple[tuple[str, Any], ...]) -> tuple[PreTrainedModel, ModelGraph]:
    module = tiny(family, **dict(overrides))
    return module, capture(module, name=family)


@cache
def _served(family: Family, overrides: tuple[tuple[str, Any], ...]) -> tuple[PreTrainedModel, ModelGraph]:
    module, model = captured(family, **dict(overrides))
    with torch.no_grad():
        run_passes(model, (*RECOGNITION, *SERVING))
    return module, model


def captured(family: Family, **overrides: Any) -> tuple[PreTrainedModel, ModelGraph]:
    """A tiny model, and a graph of it that may be rewritten; capturing is slow, so it happens once a process."""
    module, model = _captured(family, tuple(sorted(overrides.items())))
    return module, copied(model)


def served(family: Family, **overrides: Any) -> tuple[PreTrainedModel, ModelGraph]:
    """A tiny model, and its graph after both pipelines, which may be used up."""
    module, model = _served(family, tuple(sorted(overrides.items())))
    return module, copied(model)


def copied(model: ModelGraph) -> ModelGraph:
    """A copy of a graph, which may be used up."""
    module = _copied_module(model.module)
    return ModelGraph(module=module, facts=model.facts, notes=list(model.notes), origins=dict(model.origins))


def _copied_module(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copied = fx.GraphModule(module, graph)
    for name, block in module.named_children():
        copied.add_module(name, _copied_module(block))
    return copied


def graph_of(module: nn.Module, *, vocab_size: int = 11, num_layers: int | None = None) -> ModelGraph:
    """The captured graph of a small hand-written module `(input_ids, position_ids) -> logits`."""
    model = capture(module.eval(), name="hand-written")
    model.facts = ModelFacts(name="hand-written", num_layers=num_layers, vocab_size=vocab_size)
    return model


def prompt(length: int, seed: int = 0) -> Tensor:
    """Token ids [length]."""
    return torch.tensor(random_prompt(length, seed))


def reference_logits(module: nn.Module, ids: Tensor) -> Tensor:
    """What the module itself says, [tokens, vocab]."""
    with torch.no_grad():
        result = module(input_ids=ids[None], position_ids=torch.arange(len(ids))[None])
    return getattr(result, "logits", result)[0]


def graph_logits(model: ModelGraph, ids: Tensor) -> Tensor:
    """What a graph says about one sequence, whatever inputs its stage has; [tokens, vocab]."""
    return graph_outputs(model, ids)[0]


def graph_outputs(model: ModelGraph, ids: Tensor, features: Tensor | None = None) -> list[Tensor]:
    """The logits [tokens, vocab] of one sequence, and hidden states [tokens, size]; features are [tokens, size]."""
    inputs = [str(node.target) for node in model.graph.find_nodes(op="placeholder")]
    whole = fake(model.placeholder("token_ids")).dim() == 2
    given: dict[str, Any] = {"token_ids": ids[None] if whole else ids}
    given["position_ids"] = torch.arange(len(ids)).reshape(given["token_ids"].shape)
    if features is not None:
        given["features"] = features[None] if whole else features
    if "keys" in inputs:
        given |= _batch_inputs(model, ids)
    with torch.no_grad():
        result = model.module(*(given[name] for name in inputs))
    outputs = result if isinstance(result, tuple) else (result,)
    return [output[0] if whole else output for output in outputs]


def submodule_outputs(module: nn.Module, names: Sequence[str], ids: Tensor) -> list[Tensor]:
    """What submodules return, or the first item of it, when the module sees one sequence; [tokens, size] each."""
    outputs: dict[str, Tensor] = {}
    handles = []
    for name in names:

        def keep(_module: nn.Module, _inputs: Any, output: Any, name: str = name) -> None:
            outputs[name] = (output[0] if isinstance(output, tuple) else output)[0]

        handles.append(module.get_submodule(name).register_forward_hook(keep))
    reference_logits(module, ids)
    for handle in handles:
        handle.remove()
    return [outputs[name] for name in names]


def _batch_inputs(model: ModelGraph, ids: Tensor) -> dict[str, Any]:
    layers, _, kv_heads, head_dim = (int(dim) for dim in fake(model.placeholder("keys")).shape)
    shape = KVShape(num_layers=layers, num_kv_heads=kv_heads, head_dim=head_dim, padded_head_dim=head_dim, dtype=torch.float32)
    kv = KVStorage(shape, num_blocks=1, block_size=64)
    batch = chain_batch(ids.numpy())
    arrays = ("request_rows", "slots", "context_lens", "tail_starts", "tail_bits", "block_tables", "output_rows")
    tensors = {name: torch.from_numpy(getattr(batch, name)) for name in arrays}
    return {"keys": kv.keys, "values": kv.values, "block_size": kv.block_size, **tensors}


class Head(nn.Module):
    """A small draft head: a token and features `[batch, tokens, features]` joined, one layer of attention, a norm, logits."""

    def __init__(self, features: int = 12, vocab: int = 288) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.table = nn.Embedding(vocab, 16)
            self.norm = nn.RMSNorm(16, eps=1e-5)
            self.join = nn.Linear(16 + features, 16, bias=False)
            self.layer = HeadLayer()
            self.last = nn.RMSNorm(16, eps=1e-5)
            self.unused = nn.RMSNorm(16)
            self.head = nn.Linear(16, vocab, bias=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor, features: Tensor) -> Tensor:
        x = self.join(torch.cat([self.norm(self.table(input_ids)), features], dim=-1))
        logits: Tensor = self.head(self.last(self.layer(x, position_ids)))
        return logits


class HeadLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16, eps=1e-5)
        self.queries, self.keys, self.values = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.out = nn.Linear(16, 16)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.tensor([1.0, 0.3, 1.0, 0.3]))

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (linear(normed).unflatten(-1, (-1, 4)) for linear in (self.queries, self.keys, self.values))
        angles = position_ids[..., None] * self.frequencies
        cos, sin = angles.cos().unsqueeze(2), angles.sin().unsqueeze(2)
        q, k = (one * cos + torch.cat([-one[..., 2:], one[..., :2]], dim=-1) * sin for one in (q, k))
        x = x + self.out(ATTENTION(q, k, v, 0.5, None, None, None).flatten(2))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class TokenModule(nn.Module):
    """A small module `(input_ids, position_ids) -> logits [batch, tokens, 11]` around what a subclass does with x [batch, tokens, 8]."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.table = nn.Embedding(11, 8)
            self.head = nn.Linear(8, 11)
            self.extra = nn.Linear(8, 8)
            self.weight = nn.Parameter(torch.randn(8))

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.middle(self.table(input_ids), position_ids))
        return logits

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        raise NotImplementedError


def flat_graph(module: nn.Module) -> ModelGraph:
    """The graph of a small module after the passes that every recognition needs first."""
    model = graph_of(module)
    first = RECOGNITION[: RECOGNITION.index(flatten_tokens) + 1]
    run_passes(model, [one for one in first if one is not recognise_attention])  # not every module has any
    return model


def assert_same(model: ModelGraph, module: nn.Module, length: int = 6) -> None:
    """The graph still says what the module says."""
    ids = torch.arange(length) % 11
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids), atol=1e-5, rtol=1e-5)
