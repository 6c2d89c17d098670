"""What the masks of a graph's attentions mean, each evaluated once, at several sizes, and where a longer text might show more."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from flexspec.ir.evaluate import Evaluation, computed_from
from flexspec.ir.graph import ModelGraph, fake, is_tensor, needed_for
from flexspec.passes.hidden_numbers import hidden_numbers
from flexspec.passes.mask_meaning import Meaning, NotUnderstood, combined, meaning_of

UNBOUNDED = 1 << 31
# Batch sizes and lengths at which masks are looked at, and another length for biases, which 8-bit significands hold up to 256.
_SIZES = ((2, 3), (2, 12), (1, 90))
_LONG = 300
_HALF = 1 << 11  # up to here 11-bit significands hold positions
# Windows that do not show in such texts: their sizes, numbers in the graph, are replaced by these; others are looked at in longer texts.
_STAND_INS = (37, 41)
_HIDDEN_FROM = 89
_MOST_TRIED = 600


@dataclass(frozen=True, kw_only=True)
class AttentionSite:
    """One attention: `product` = queries · keys; `scores` of it go into the softmax; `out` = weights · values."""

    out: fx.Node
    operands: tuple[fx.Node, fx.Node, fx.Node]
    keys_transposed: bool
    scores: Callable[[Evaluation, Tensor], Tensor]
    reads: tuple[fx.Node, ...]  # what the scores are computed from besides
    form: Any  # hashable; sites of one form that read the same have the same scores
    exact_scale: float | None = None


class Masks:
    """What masks mean; `limit` is the length up to which they all mean that."""

    def __init__(self, model: ModelGraph) -> None:
        self.model = model
        self._evaluations: dict[Any, Evaluation] = {}
        self._meanings: dict[Any, Meaning] = {}
        self._slopes: dict[tuple[float, ...], fx.Node] = {}
        self.most = longest(model)
        self.limit = self.most

    def at(self, batch: int, length: int, constants: tuple[tuple[float, float], ...] = ()) -> Evaluation:
        """The graph at one size, kept."""
        key = (batch, length, constants)
        if key not in self._evaluations:
            self._evaluations[key] = Evaluation(self.model, batch=batch, length=length, constants=dict(constants))
        return self._evaluations[key]

    def meaning(self, site: AttentionSite, heads: int) -> Meaning:
        """What a site's scores mean, at every length; `limit` falls where that is only so up to some length.

        Raises:
            NotUnderstood: if attention has no such attributes, or longer texts may see something else.
        """
        key = (site.form, heads)
        if key not in self._meanings:
            self._meanings[key] = self._find(site, heads)
        return self._meanings[key]

    def slopes(self, values: tuple[float, ...]) -> fx.Node:
        """The graph's parameter with these slopes of heads."""
        if values not in self._slopes:
            first = next(node for node in self.model.graph.nodes if node.op == "call_function")
            self._slopes[values] = self.model.add_parameter("slopes", torch.tensor(values), first, ("slopes", *values))
        return self._slopes[values]

    def _find(self, site: AttentionSite, heads: int) -> Meaning:
        read = computed_from(site.reads)
        cone = read | computed_from([site.out]) - needed_for(site.operands)
        numbers = hidden_numbers(self.model, cone, _HIDDEN_FROM)
        lengths = _buffer_sizes(self.model, read) | {number + 3 for number in numbers.fixed if number <= _MOST_TRIED}
        if unseen := {number for number in numbers.fixed if _MOST_TRIED < number < self.most}:
            raise NotUnderstood(f"the number {min(unseen)} in its mask may change what longer texts see")
        self._limit_tables(site, heads, min(self.most, max([_LONG, *lengths])))
        sizes = [size for size in (*_SIZES, *((1, length) for length in sorted(lengths))) if size[1] <= self.most]
        found = self._at(site, heads, sizes[0])
        for size in sizes[1:]:
            found = combined(found, self._at(site, heads, size))
        for number in sorted(numbers.replaceable):
            found = combined(found, self._with_window(site, heads, number, found))
        if found.slopes is not None:
            self._limit_slopes(site, heads, found, {fake(node).dtype for node in cone if is_tensor(node)})
        return found

    def _at(self, site: AttentionSite, heads: int, size: tuple[int, int], constants: tuple[tuple[float, float], ...] = ()) -> Meaning:
        batch, length = size
        evaluation = self.at(batch, length, constants)
        return meaning_of(partial(site.scores, evaluation), batch=batch, heads=heads, length=length)

    def _with_window(self, site: AttentionSite, heads: int, number: float, found: Meaning) -> Meaning:
        """The meaning in a text longer than `number`, which may be its window: seen at smaller numbers in its place."""
        seen = [self._at(site, heads, _SIZES[-1], ((number, one),)) for one in _STAND_INS]
        first, second = (one.window for one in seen)
        if first == second:
            return found
        if first is None or second is None or second - first != _STAND_INS[1] - _STAND_INS[0] or not float(number).is_integer():
            raise NotUnderstood(f"the number {number} in its mask is no sliding window's")
        return replace(found, window=first + int(number) - _STAND_INS[0])

    def _limit_tables(self, site: AttentionSite, heads: int, most: int) -> None:
        """A table that the mask takes a text's part of may end without a check."""

        def runs(length: int) -> bool:
            try:
                site.scores(self.at(1, length), torch.zeros((1, heads, length, length)))
            except (RuntimeError, IndexError):
                return False
            return True

        if (length := _longest_with(runs, 1, most)) < most:
            self.most, self.limit = length, min(self.limit, length)

    def _limit_slopes(self, site: AttentionSite, heads: int, found: Meaning, dtypes: Iterable[torch.dtype]) -> None:
        """A bias computed in a short float type grows evenly up to some position only."""

        def is_even(length: int) -> bool:
            try:
                combined(found, self._at(site, heads, (1, length)))
            except NotUnderstood:
                return False
            return True

        most = min(_LONG, self.most)
        if (length := _longest_with(is_even, _SIZES[-1][1], most)) < most:
            self.limit = min(self.limit, length)
        elif torch.float16 in dtypes:
            self.limit = min(self.limit, _HALF)


def _longest_with(holds: Callable[[int], bool], known: int, most: int) -> int:
    """The largest length up to `most` at which something holds that holds at `known`, and at all lengths up to where it ends."""
    if most <= known or holds(most):
        return max(known, most)
    wrong = most
    while wrong - known > 1:
        length = (known + wrong) // 2
        known, wrong = (length, wrong) if holds(length) else (known, length)
    return known


def longest(model: ModelGraph) -> int:
    """Tokens that a text may have, as tracing found it: masks and tables of a fixed size bound it."""
    length = fake(model.placeholder("token_ids")).shape[1]
    assert isinstance(length, torch.SymInt)
    upper = length.node.shape_env.bound_sympy(length.node.expr).upper
    return int(upper) if upper.is_Integer and upper < UNBOUNDED else UNBOUNDED


def _buffer_sizes(model: ModelGraph, nodes: Iterable[fx.Node]) -> set[int]:
    """Sizes of the square constants among nodes: masks that a model keeps."""
    shapes = [model.parameter(node).shape for node in nodes if node.op == "get_attr"]
    return {int(shape[-1]) for shape in shapes if len(shape) >= 2 and shape[-1] == shape[-2] > _HIDDEN_FROM}
