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
from flexspec.ir.graph import ModelGraph, expression, fake, is_tensor
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
                new = counted.by_position(arg, place, node)
                if new is not None:
                    node.replace_input_with(arg, new)
    if counted.has_end:
        limits = [limit for limit in (model.facts.max_positions, counted.most) if limit is not None]
        model.facts = replace(model.facts, max_positions=min(limits))
    if counted.made:
        model.finish()
    return len(counted.made)


class _Counted:
    """Values with a row for each token, read by position."""

    def __init__(self, model: ModelGraph) -> None:
        self.model = model
        self.most = min(longest(model), _MOST_POSITIONS)
        self.positions = model.placeholder("position_ids")
        self.batch, self.length = (expression(dim) for dim in fake(self.positions).shape)
        self.made: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
        self.has_end = False  # whether positions end with a table
        self._rows: dict[fx.Node, fx.Node | None] = {}
        self._shaped: dict[tuple[fx.Node, tuple[int, int], tuple[Any, ...]], fx.Node] = {}
        self._tables: list[tuple[Tensor, fx.Node]] = []
        self._evaluations: dict[tuple[int, int], Evaluation] = {}

    def token_dim(self, node: fx.Node) -> int | None:
        """The one dim that is as long as the text, if all others are static, but for one, which may be the batch."""
        dims = [expression(dim) for dim in fake(node).shape]
        rest = [dim for dim in dims if dim not in (self.length, self.batch)]
        alone = dims.count(self.length) == 1 and dims.count(self.batch) <= 1
        return dims.index(self.length) if alone and all(isinstance(dim, int) for dim in rest) else None

    def by_position(self, value: fx.Node, place: int, user: fx.Node) -> fx.Node | None:
        """The value with batch and tokens where a point-wise user has them; None if it can't be read by position."""
        dims = [expression(dim) for dim in fake(user).shape]
        missing = len(dims) - fake(value).dim()
        if dims.count(self.batch) != 1 or dims.count(self.length) != 1 or dims.index(self.length) != place + missing:
            return None
        shape, at = [1] * missing + list(fake(value).shape), (dims.index(self.batch), dims.index(self.length))
        if expression(shape[at[0]]) not in (1, self.batch):
            return None
        key = (value, (len(dims), *at))
        if key not in self.made:
            rows = self._rows_of(value, place - fake(value).dim(), user)
            if rows is None:
                return None
            rest = [size for dim, size in enumerate(shape) if dim not in at]
            if (same := (rows, at, tuple(rest))) not in self._shaped:
                self._shaped[same] = self._with_dims(rows, rest, at, user)
            self.made[key] = self._shaped[same]
        return self.made[key]

    def _with_dims(self, rows: fx.Node, rest: list[int], at: tuple[int, int], before: fx.Node) -> fx.Node:
        """[batch, tokens, all else] with all else of sizes `rest`, and batch and tokens at the dims `at`."""
        if not rest:
            made = self.model.emit(_aten.select.int, (rows, 2, 0), before=before)
        else:
            made = self.model.emit(_aten.unflatten.int, (rows, 2, rest), before=before) if len(rest) > 1 else rows
        if at == (0, 2):
            return self.model.emit(_aten.transpose.int, (made, 1, 2), before=before)
        others = iter(range(2, 2 + len(rest)))
        order = [at.index(dim) if dim in at else next(others) for dim in range(2 + len(rest))]
        return made if order == sorted(order) else self.model.emit(_aten.permute.default, (made, order), before=before)

    def _rows_of(self, value: fx.Node, place: int, before: fx.Node) -> fx.Node | None:
        """[batch, tokens, all else], of sizes 1 where all rows are alike; `place`, from the end, is where the tokens are in the value."""
        if value.target == _aten.embedding.default and is_parameter(value.args[0]) and place == -2:
            offset = self._offset(value.args[1])
            if offset is not None:
                self.has_end = True
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
        if bool((table == table[0]).all()):
            rows = self.model.add_parameter(f"{value.name}_of_all", table[0].clone()[None, None], before=before, origin=origin)
        else:
            self.has_end = True
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
        try:
            table = self._flat(value, place, 1, self.most)[0]
        except (IndexError, RuntimeError):  # of a table that has fewer rows
            return None
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
        dims = [expression(dim) for dim in fake(value).shape]
        place %= len(dims)
        rows = given.movedim((dims.index(self.batch), place), (0, 1)) if self.batch in dims else given[None].movedim(place + 1, 1)
        return rows.flatten(2) if rows.dim() > 2 else rows[..., None]
