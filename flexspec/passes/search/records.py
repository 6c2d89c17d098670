"""What a model does for a token, operator by operator, read off the IR: what the search knows of it. No weights are needed."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn
from transformers import PreTrainedConfig

from flexspec.ir.capture import capture
from flexspec.ir.cost import operator_flops
from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.ir.ops import ATTENTION, RMS_NORM, ROPE, ROUTED_EXPERTS
from flexspec.ir.ops.partition_rules import values_of, weights_of
from flexspec.ir.ops.partitionings import partitionings
from flexspec.ir.partition import Partitioning
from flexspec.passes.blocks import find_blocks, fingerprint
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.search.hollow import WithoutProducts, hollow_model
from flexspec.passes.tokenwise import largest_position

_aten = torch.ops.aten
_TILE = 16
"""Columns that stay together where nothing else says what has to: kernels' tiles are whole then."""
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")

RecordKind = Literal["linear", "experts", "attention", "norm", "elementwise", "embedding", "view"]
_KINDS: Mapping[Any, RecordKind] = {
    _aten.linear.default: "linear",
    _aten.embedding.default: "embedding",
    ROUTED_EXPERTS: "experts",
    ATTENTION: "attention",
    RMS_NORM: "norm",
    _aten.layer_norm.default: "norm",
    ROPE: "view",  # attention rotates what it reads
    operator.getitem: "view",
}
_VIEWS = {"reshape", "slice", "split", "split_with_sizes", "chunk", "unsqueeze", "squeeze", "select", "transpose", "expand"}


@dataclass(frozen=True, kw_only=True)
class OperatorRecord:
    """One operator.

    Attributes:
        name: its node's.
        kind: what it costs is looked up by it; a `view` costs nothing of its own.
        reads: the values it reads, in the order of its partitionings' inputs: first the place's inputs are counted, then its operators.
        in_columns: elements a token that it reads, of a linear its input columns.
        out_columns: elements a token of its result.
        is_tensor: whether the result is one tensor; what is none can't be moved to another layout.
        weights: elements of each parameter.
        flops_per_token: of matrix products with parameters.
        flops_per_key: for each token and each key that it sees.
        heads: query heads of an attention.
        kv_heads: its KV heads.
        head_dim: elements of a head of its keys.
        value_dim: elements of a head of its values.
        window: most keys that a token sees; None for all.
        experts: of a mixture of experts, how many there are; its weights are theirs in equal parts.
        top_k: those that a token goes to.
        partitionings: all ways to divide it.
    """

    name: str
    kind: RecordKind
    reads: tuple[int, ...]
    in_columns: int
    out_columns: int
    is_tensor: bool = True
    weights: tuple[int, ...] = ()
    flops_per_token: int = 0
    flops_per_key: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    experts: int = 0
    top_k: int = 0
    partitionings: tuple[Partitioning, ...]


@dataclass(frozen=True, kw_only=True)
class BlockRecord:
    """A place of the model: a kind of block, the embedding, or the head.

    Attributes:
        name: `block_0`, …, `embedding` or `head`: as plans call it.
        inputs: elements a token of the values that it reads from outside, which are whole on every device.
        operators: in graph order; the last one's value is what the place gives.
    """

    name: str
    inputs: tuple[int, ...]
    operators: tuple[OperatorRecord, ...]

    @property
    def weights(self) -> int:
        """Elements of all its parameters."""
        return sum(sum(one.weights) for one in self.operators)

    @property
    def flops_per_token(self) -> int:
        """Of matrix products with parameters."""
        return sum(one.flops_per_token for one in self.operators)

    @property
    def flops_per_key(self) -> int:
        """For each token and each key that it sees."""
        return sum(one.flops_per_key for one in self.operators)

    @property
    def attention(self) -> OperatorRecord | None:
        """Its attention, which a place has one of at most."""
        return next((one for one in self.operators if one.kind == "attention"), None)

    @property
    def widest(self) -> int:
        """Most elements a token that an operator reads and writes."""
        return max((one.in_columns + one.out_columns for one in self.operators), default=0)


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """A model.

    Attributes:
        name: what the user calls it.
        hidden: columns of the residual stream.
        layers: the kind of each layer.
        blocks: of each kind.
        embedding: what comes before the layers.
        head: what comes after them.
        tied: whether the head's matrix is the embedding's.
        position_weights: elements of tables of learned positions, which every device has that has the embedding.
        vocab_size: columns of the logits.
        max_positions: the most tokens of a sequence; None if no limit is known.
        fingerprint: of the model's structure, as `fingerprint` gives it for its graph.
    """

    name: str
    hidden: int
    layers: tuple[str, ...]
    blocks: Mapping[str, BlockRecord]
    embedding: BlockRecord
    head: BlockRecord
    tied: bool
    position_weights: int
    vocab_size: int
    max_positions: int | None
    fingerprint: str

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer: one cache holds those of all."""
        return max(block.attention.kv_heads for block in self.blocks.values() if block.attention is not None)

    @property
    def head_dim(self) -> int:
        """Elements of a head in the KV cache."""
        return max(max(one.head_dim, one.value_dim) for block in self.blocks.values() if (one := block.attention) is not None)

    @property
    def kv_elements(self) -> int:
        """Of the KV cache for one token and one layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Elements of all parameters, a tied matrix counted once."""
        layers = sum(self.blocks[kind].weights for kind in self.layers)
        shared = self.embedding.operators[0].weights[0] if self.tied else 0
        return layers + self.embedding.weights + self.position_weights + self.head.weights - shared

    @property
    def flops_per_token(self) -> int:
        """Of matrix products with parameters."""
        return sum(self.blocks[kind].flops_per_token for kind in self.layers) + self.head.flops_per_token

    @property
    def flops_per_key(self) -> int:
        """For each token and each key that it sees."""
        return sum(self.blocks[kind].flops_per_key for kind in self.layers)


def model_record(model: PreTrainedConfig | nn.Module, *, name: str = "", feature_size: int = 0) -> ModelRecord:
    """What a model does for a token.

    Args:
        model: the config of a decoder, or a module, whose weights are not looked at.
        name: what the user calls it; "" for the class's name.
        feature_size: columns of the features that the module takes; 0 if it takes none.

    Raises:
        UsageError: if it is not a decoder that can be captured, or has no layers that can be told apart.
    """
    name = name or type(model).__name__
    config: Any = model if isinstance(model, PreTrainedConfig) else getattr(model, "config", None)
    if isinstance(model, PreTrainedConfig) or (isinstance(config, PreTrainedConfig) and not feature_size):
        module, layers = hollow_model(config, name)
    else:
        module, layers = model, None
    with WithoutProducts():
        graph = capture(module, name=name, feature_size=feature_size, own_dtype=True)
    with torch.no_grad():
        run_passes(graph, FLAT)
    limits = [limit for limit in (getattr(config, one, None) for one in _LIMITS) if isinstance(limit, int) and limit > 0]
    return graph_record(graph, max_positions=next(iter(limits), None), layers=layers)


def graph_record(model: ModelGraph, *, max_positions: int | None = None, layers: Sequence[int] | None = None) -> ModelRecord:
    """The record of a model.

    Args:
        model: the flat recognised graph, before its linears are fused; it may have other layers than the model.
        max_positions: what the model's config says.
        layers: for each layer of the model, one of the graph's that is like it; None: as they are.

    Raises:
        UsageError: if it has no layers that can be told apart.
    """
    blocks = find_blocks(model)
    places = {layer.kind: layer.nodes for layer in reversed(blocks.layers)}
    kinds = tuple(blocks.layers[layer].kind for layer in (range(len(blocks.layers)) if layers is None else layers))
    embedding, head = block_record("embedding", blocks.prologue), block_record("head", blocks.epilogue)
    learned = [node for node in model.nodes(_aten.embedding.default) if node not in blocks.prologue]
    limits = [limit for limit in (max_positions, largest_position(model)) if limit is not None]
    return ModelRecord(
        name=model.facts.name,
        hidden=int(fake(blocks.layers[0].nodes[-1]).shape[-1]),
        layers=kinds,
        blocks={kind: block_record(kind, places[kind]) for kind in sorted(places, key=lambda kind: kinds.index(kind))},
        embedding=embedding,
        head=head,
        tied=not set(_weights(blocks.prologue)).isdisjoint(_weights(blocks.epilogue)),
        position_weights=sum(math.prod(fake(table).shape) for node in learned for table in weights_of(node)),
        vocab_size=model.facts.vocab_size,
        max_positions=min(limits, default=None),
        fingerprint=fingerprint(blocks, kinds),
    )


def block_record(name: str, nodes: Sequence[fx.Node]) -> BlockRecord:
    """The record of a place with these operators."""
    units = _units(nodes)
    outside = list(dict.fromkeys(arg for node in nodes for arg in values_of(node) if arg not in set(nodes)))
    index = {value: place for place, value in enumerate((*outside, *nodes))}
    operators = tuple(_operator(node, index, units) for node in nodes)
    return BlockRecord(name=name, inputs=tuple(map(_columns, outside)), operators=operators)


def _operator(node: fx.Node, index: Mapping[fx.Node, int], units: Sequence[int]) -> OperatorRecord:
    values, weights = values_of(node), weights_of(node)
    per_token, per_key = operator_flops(node)
    shape: dict[str, Any] = {}
    if node.target == ATTENTION:
        (heads, head_dim), (kv_heads, value_dim) = fake(node.args[0]).shape[-2:], fake(node.args[2]).shape[-2:]
        shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim, "window": node.args[4]}
    elif node.target == ROUTED_EXPERTS:
        shape = {"experts": fake(node.args[3]).shape[0], "top_k": fake(node.args[1]).shape[-1]}
    return OperatorRecord(
        name=node.name,
        kind=_kind(node),
        reads=tuple(index[value] for value in values),
        in_columns=sum(map(_columns, values)),
        out_columns=_columns(node),
        is_tensor=is_tensor(node),
        weights=tuple(math.prod(fake(weight).shape) for weight in weights),
        flops_per_token=per_token,
        flops_per_key=per_key,
        partitionings=tuple(partitionings(node, units)),
        **shape,
    )


def _kind(node: fx.Node) -> RecordKind:
    if node.target in _KINDS:
        return _KINDS[node.target]
    return "view" if str(getattr(node.target, "__name__", "")).split(".")[0] in _VIEWS else "elementwise"


def _columns(node: fx.Node) -> int:
    """Elements a token of a value; 0 of what is no tensor with a row for each token."""
    value = node.meta["val"]
    parts = [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, torch.Tensor)]
    return sum(math.prod(part.shape[1:]) for part in parts)


def _units(nodes: Sequence[fx.Node]) -> list[int]:
    """What is offered to be kept whole: KV heads with all that reads them; tiles of the widest matrix, of all alike, of experts."""
    kv_heads = [int(fake(node.args[1]).shape[-2]) for node in nodes if node.target == ATTENTION]
    widths = [int(dim) for node in nodes if node.target == _aten.linear.default for dim in fake(node.args[1]).shape]
    widths = widths or [int(fake(node).shape[-1]) for node in nodes if node.target == _aten.embedding.default]
    experts = [int(fake(node.args[3]).shape[1]) for node in nodes if node.target == ROUTED_EXPERTS]
    tiled = [max(widths), math.gcd(*widths), *experts] if widths else []
    return list(dict.fromkeys([*kv_heads, *(width // math.gcd(width, _TILE) for width in tiled)]))


def _weights(nodes: Sequence[fx.Node]) -> list[str]:
    return [str(weight.target) for node in nodes for weight in weights_of(node) if fake(weight).dim() == 2]
