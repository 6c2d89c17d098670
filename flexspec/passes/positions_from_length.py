"""Positions that a model counts itself, from the length of its input: taken from `position_ids` instead.

A module that adds `table[: length]` or turns by `arange(length)` gives its i-th token what belongs to position i. Whatever it computes
so, from the length and constants alone, is one row a position: the rows are computed once, and each token reads that of its position.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from flexspec.ir.evaluate import Evaluation, depends_on_content
from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.attention_masks import longest
from flexspec.passes.match import is_parameter

_aten = torch.ops.aten
_MOST_POSITIONS = 1 << 15  # of models that name no limit themselves
_SIZES = ((2, 3), (2, 12), (1, 50))
_TOLERANCE = 1e-5
_MOST_ELEMENTS = 1 << 27


def positions_from_length(model: ModelGraph) -> int:
    """Rewrite what has a row for each token whatever the tokens are, where point-wise operators bring it together with tokens' values.

    Returns:
        How many such values there were.
    """
    content = depends_on_content(model, [*model.token_inputs, model.placeholder("position_ids")])
    counted = _Counted(model)
    for node in list(model.graph.nodes):
        if node not in content or torch.Tag.pointwise not in getattr(node.target, "tags", ()):
            continue
        for arg in node.all_input_nodes:
            if arg not in content and is_tensor(arg) and (place := counted.token_dim(arg)) is not None:
                new = counted.by_position(arg, place, fake(node).dim(), before=node)
                if new is not None:
                    node.replace_input_with(arg, new)
    if counted.made:
        limits = [limit for limit in (model.facts.max_positions, counted.most) if limit is not None]
        model.facts = replace(model.facts, max_positions=min(limits))
        model.finish()
    return len(counted.made)


class _Counted:
    """Values with a row for each token, read by position."""

    def __init__(self, model: ModelGraph) -> None:
        self.model = model
        self.most = min(longest(model), _MOST_POSITIONS)
        self.positions = model.placeholder("position_ids")
        self.batch, self.length = (_expression(dim) for dim in fake(self.positions).shape)
        self.made: dict[tuple[fx.Node, int], fx.Node] = {}
        self._rows: dict[fx.Node, fx.Node | None] = {}
        self._shaped: dict[tuple[fx.Node, int, tuple[Any, ...]], fx.Node] = {}
        self._tables: list[tuple[Tensor, fx.Node]] = []
        self._evaluations: dict[tuple[int, int], Evaluation] = {}

    def token_dim(self, node: fx.Node) -> int | None:
        """The one dim that is as long as the text, if all others are static, but for the first, which may be the batch."""
        dims = [_expression(dim) for dim in fake(node).shape]
        places = [place for place, dim in enumerate(dims) if dim == self.length]
        rest = [dim for place, dim in enumerate(dims) if dim != self.length and not (place == 0 and dim == self.batch)]
        return places[0] if len(places) == 1 and all(isinstance(dim, int) for dim in rest) else None

    def by_position(self, value: fx.Node, place: int, rank: int, before: fx.Node) -> fx.Node | None:
        """The value as [batch, tokens, …] or [batch, …, tokens, …] with `rank` dims; None if it can't be read by position."""
        shape = [1] * (rank - fake(value).dim()) + list(fake(value).shape)
        place += rank - fake(value).dim()
        if place not in (1, 2) or (place == 2 and not isinstance(shape[1], int)):
            return None
        if (value, rank) not in self.made:
            rows = self._rows_of(value, place - rank, before)
            if rows is None:
                return None
            rest = [*shape[1:place], *shape[place + 1 :]]
            if (same := (rows, place, tuple(rest))) in self._shaped:
                self.made[value, rank] = self._shaped[same]
                return self._shaped[same]
            made = self.model.emit(_aten.unflatten.int, (rows, 2, rest), before=before) if len(rest) > 1 else rows
            if place == 2:
                made = self.model.emit(_aten.transpose.int, (made, 1, 2), before=before)
            if not rest:
                made = self.model.emit(_aten.select.int, (made, 2, 0), before=before)
            self.made[value, rank] = self._shaped[same] = made
        return self.made[value, rank]

    def _rows_of(self, value: fx.Node, place: int, before: fx.Node) -> fx.Node | None:
        """[batch, tokens, all else]; `place`, from the end, is where the tokens are in the value."""
        if value.target == _aten.embedding.default and is_parameter(value.args[0]) and place == -2:
            offset = self._offset(value.args[1])
            if offset is not None:
                positions = self.positions
                if offset:
                    positions = self.model.emit(_aten.add.Tensor, (positions, offset), before=before)
                return self.model.emit(_aten.embedding.default, (value.args[0], positions), before=before)
        table = self._table(value, place)
        if table is None:
            return None
        for other, rows in self._tables:  # queries and keys may compute their own
            if torch.equal(other, table):
                return rows
        origin = ("by position", value.name)
        parameter = self.model.add_parameter(f"{value.name}_by_position", table, before=before, origin=origin)
        rows = self.model.emit(_aten.embedding.default, (parameter, self.positions), before=before)
        self._tables.append((table, rows))
        return rows

    def _at(self, batch: int, length: int) -> Evaluation:
        if (batch, length) not in self._evaluations:
            self._evaluations[batch, length] = Evaluation(self.model, batch=batch, length=length)
        return self._evaluations[batch, length]

    def _offset(self, index: Any) -> int | None:
        """What is added to positions, if an index is positions."""
        offsets = set()
        for batch, length in _SIZES:
            given = self._at(batch, length).value(index)
            offset = int(given.reshape(-1)[0])
            if not torch.equal(given, (torch.arange(length) + offset).expand_as(given)):
                return None
            offsets.add(offset)
        return offsets.pop() if len(offsets) == 1 else None

    def _table(self, value: fx.Node, place: int) -> Tensor | None:
        """[positions, all else], float32, if a token's row is the same in a text of every length, and for the whole batch."""
        if not fake(value).is_floating_point():
            return None
        if self.most * math.prod(size for size in fake(value).shape if isinstance(size, int)) > _MOST_ELEMENTS:
            return None
        table = self._flat(value, place, 1, self.most)[0]
        for batch, length in _SIZES:
            if length > self.most:
                continue
            rows = self._flat(value, place, batch, length)
            if not torch.allclose(rows, table[:length].expand_as(rows), rtol=_TOLERANCE, atol=_TOLERANCE):
                return None
        return table

    def _flat(self, value: fx.Node, place: int, batch: int, length: int) -> Tensor:
        """[batch or 1, tokens, all else]"""
        given: Tensor = self._at(batch, length).value(value).float()
        has_batch = _expression(fake(value).shape[0]) == self.batch
        rows = given.movedim(place, 1) if has_batch else given[None].movedim(place, 1)
        return rows.flatten(2) if rows.dim() > 2 else rows[..., None]


def _expression(dim: Any) -> Any:
    return dim.node.expr if isinstance(dim, torch.SymInt) else dim
