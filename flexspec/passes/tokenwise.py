"""The proof that everything but attention is token-wise, so that requests can share a pass."""

from typing import Any

import torch
from torch import Tensor, fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION

_TOKENS = 4
_CHANGED = 1


def prove_tokenwise(model: ModelGraph) -> int:
    """With attention cut out, change one token's id and position (to the largest) and compare all other rows.

    Returns:
        How many values were compared.

    Raises:
        UsageError: naming the first operator at which another token's row changed.
    """
    ids = torch.arange(_TOKENS) % model.facts.vocab_size
    positions = torch.arange(_TOKENS)
    other_ids, other_positions = ids.clone(), positions.clone()
    other_ids[_CHANGED] = model.facts.vocab_size - 1
    other_positions[_CHANGED] = largest_position(model)
    with torch.no_grad():
        first = _Cut(model.module).values(ids, positions)
        second = _Cut(model.module).values(other_ids, other_positions)
    kept = [row for row in range(_TOKENS) if row != _CHANGED]
    compared = 0
    for node in model.graph.nodes:
        before, after = first.get(node), second.get(node)
        if before is None or after is None or node.op == "placeholder":
            continue
        token_rows = isinstance(fake(node).shape[0], torch.SymInt) if fake(node).dim() else False
        if token_rows:
            before, after = before[kept], after[kept]
        if not torch.equal(before, after):
            raise UsageError(
                f"model {model.facts.name}: operator {node.name} ({node.target}) mixes tokens outside attention, "
                "so requests can't share a pass; this model is not supported"
            )
        compared += 1
    return compared


def largest_position(model: ModelGraph, default: int = 1 << 20) -> int:
    """The largest position that learned position embeddings have a row for; `default` without such embeddings."""
    from_positions = {model.placeholder("position_ids")}
    largest = default
    for node in model.graph.nodes:
        if node.op != "call_function" or not any(arg in from_positions for arg in node.all_input_nodes):
            continue
        if node.target == torch.ops.aten.embedding.default:
            table, index = node.args[:2]
            shift = index.args[1] if index.op == "call_function" else 0
            largest = min(largest, int(fake(table).shape[0]) - 1 - shift)
        elif node.target in (torch.ops.aten.add.Tensor, torch.ops.aten.reshape.default):
            from_positions.add(node)
    return largest


class _Cut(fx.Interpreter):
    """Runs a flat graph with each attention replaced by a row-wise stand-in, and keeps every value."""

    def values(self, ids: Tensor, positions: Tensor) -> dict[fx.Node, Tensor]:
        self.kept: dict[fx.Node, Tensor] = {}
        self.run(ids, positions)
        return self.kept

    def run_node(self, n: fx.Node) -> Any:
        if n.target == ATTENTION:
            q, k, v = (self.env[arg] for arg in n.args[:3])  # type: ignore[index]
            groups = q.shape[-2] // k.shape[-2]
            result: Any = q + (k + v).repeat_interleave(groups, dim=-2)
        else:
            result = super().run_node(n)
        if isinstance(result, Tensor) and n.op not in ("output", "get_attr"):
            self.kept[n] = result
        return result
