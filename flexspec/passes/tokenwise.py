"""The proof that everything but attention is token-wise, so that requests can share a pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, depends_on, fake
from flexspec.ir.ops import COMBINE, REDUCE, REPLICATE, TREE_ATTENTION

_TOKENS = 4
_CHANGED = 1
_UNLIMITED = 1 << 20
_EMBEDDING = torch.ops.aten.embedding.default
_SHIFT = 1.0
"""What the changed token's features differ by."""


def prove_tokenwise(model: ModelGraph) -> int:
    """With attention cut out, change one token's id, position (to the largest) and features, and compare all other rows.

    Mixing is a property of operators and not of weights: one block of each structural kind is run.

    Returns:
        How many values were compared.

    Raises:
        UsageError: naming the first operator at which another token's row changed.
    """
    largest_id = model.facts.vocab_size - 1
    ids = torch.arange(_TOKENS) % max(largest_id, 1)
    positions = torch.arange(_TOKENS)
    other_ids, other_positions = ids.clone(), positions.clone()
    other_ids[_CHANGED] = largest_id
    other_positions[_CHANGED] = (largest_position(model) or _UNLIMITED) - 1
    features = torch.linspace(-1, 1, _TOKENS * model.feature_size).reshape(_TOKENS, model.feature_size)
    other_features = features.clone()
    other_features[_CHANGED] += _SHIFT
    with torch.no_grad():
        first = _values(model, ids, positions, features)
        second = _values(model, other_ids, other_positions, other_features)
    kept = [row for row in range(_TOKENS) if row != _CHANGED]
    gathered = depends_on(model.graph, model.inputs("output_rows"))
    for node, before in first.items():
        after = second[node]
        if node in gathered or (fake(node).dim() and isinstance(fake(node).shape[0], torch.SymInt)):
            before, after = before[kept], after[kept]
        if not torch.allclose(before, after, rtol=0, atol=0, equal_nan=True):
            raise UsageError(
                f"model {model.facts.name}: operator {node.name} ({node.target}) mixes tokens outside attention, "
                "so requests can't share a pass; this model is not supported"
            )
    return len(first)


def largest_position(model: ModelGraph) -> int | None:
    """How many positions learned position embeddings have a row for; None without such embeddings."""
    from_positions = {model.placeholder("position_ids"): 0}
    limits = []
    for node in model.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target == _EMBEDDING and node.args[1] in from_positions:
            limits.append(int(fake(node.args[0]).shape[0]) - from_positions[node.args[1]])
        elif node.target == torch.ops.aten.add.Tensor and node.args[0] in from_positions and isinstance(node.args[1], int):
            from_positions[node] = from_positions[node.args[0]] + node.args[1]
    return min(limits, default=None)


def _values(model: ModelGraph, ids: Tensor, positions: Tensor, features: Tensor) -> dict[fx.Node, Tensor]:
    given: dict[str, Any] = {"token_ids": ids, "position_ids": positions, "features": features, "output_rows": torch.arange(_TOKENS)}
    inputs = [given.get(str(node.target)) for node in model.graph.find_nodes(op="placeholder")]
    kept: dict[fx.Node, Tensor] = {}
    _Cut(model.module, kept, {}).run(*inputs)
    return kept


class _Cut(fx.Interpreter):
    """Runs a graph in float32 with each attention and collective replaced by a row-wise stand-in, each kind of block once.

    It keeps every value.
    """

    def __init__(self, module: fx.GraphModule, kept: dict[fx.Node, Tensor], blocks: dict[str, Any]) -> None:
        super().__init__(module)
        self.kept, self.blocks = kept, blocks

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module":
            name = str(n.target)
            if name not in self.blocks:
                args, _ = self.fetch_args_kwargs_from_env(n)
                self.blocks[name] = _Cut(self.fetch_attr(name), self.kept, self.blocks).run(*args)
            return self.blocks[name]
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.op == "call_function":
            self.kept[n] = result
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target == _EMBEDDING:  # of a table that may be large
            return _float32(super().call_function(target, args, kwargs))
        args = tree_map(_float32, args)
        stand_in = _STAND_INS.get(target)
        return super().call_function(target, args, kwargs) if stand_in is None else stand_in(*args)


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return q + (k + v).repeat_interleave(q.shape[-2] // k.shape[-2], dim=-2)


def _combine(x: Tensor, widths: Sequence[int], group: str) -> Tensor:
    return torch.constant_pad_nd(x, [*(0, 0) * (x.dim() - 2), 0, sum(widths) - x.shape[1]])


# Functions of each row alone, of the right shape.
_STAND_INS: dict[Any, Callable[..., Tensor]] = {
    TREE_ATTENTION: _attention,
    COMBINE: _combine,
    REDUCE: lambda x, size, group: x,
    REPLICATE: lambda x, group: x,
}
